"""A small JSON file that several processes change: one at a time, and never seen half written."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gridq.config.home import write_private

MAX_FAILURES = 100
"""How many times in a row `_lock` tries again because another process has just removed the folder."""


@contextmanager
def update_json(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in the file `path` under a lock, and write it after the block if it has changed.

    A file that is missing or damaged counts as empty; if the object is empty, the file is removed. Waits for
    other processes, each of which takes milliseconds. Raises OSError if the folder cannot be written.
    """
    lock_path = path.with_name(f"{path.name}.lock")
    lock = _lock(lock_path)
    try:
        content = read_json(path)
        before = json.dumps(content)
        yield content
        after = json.dumps(content)
        if not content:
            path.unlink(missing_ok=True)
            lock_path.unlink(missing_ok=True)  # whoever waits for it notices, and starts again
        elif after != before:
            write_private(path, after)
    finally:
        os.close(lock)


def _lock(path: Path) -> int:
    """Create the file `path` and lock it. Return its descriptor; closing that releases the lock."""
    failures = 0
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (FileExistsError, FileNotFoundError):  # another process has just removed the folder
            failures += 1
            if failures == MAX_FAILURES:
                raise
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(lock), path.lstat()):
                return lock
        except FileNotFoundError:
            pass  # another process removed the file while this one waited
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file; an empty one if the file is missing, damaged or cannot be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
