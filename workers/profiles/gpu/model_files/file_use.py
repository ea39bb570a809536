"""Mark a model's file as in use by a lock on the file itself, which ends with its process, however it ends.

Nothing is imported here that an engine's process has no other use for.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def hold_file(path: str | Path) -> int:
    """Open a file so that `is_in_use` tells it while the descriptor is open. Raises OSError if it is absent.

    Nobody is told where the file system has no locks.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)
    return file


def is_in_use(path: Path) -> bool:
    """Return whether a process holds the file by `hold_file`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
