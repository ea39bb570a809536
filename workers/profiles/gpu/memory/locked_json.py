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


@contextmanager
def update_json(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in the file `path`, alone; what it is after the block is written, if it has changed.

    A file that is missing or damaged counts as empty. Waits for other processes, each of which takes
    milliseconds. Raises OSError if the folder cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = read_json(path)
        before = json.dumps(content)
        yield content
        after = json.dumps(content)
        if after != before:
            write_private(path, after)
    finally:
        os.close(lock)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file, an empty one if there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
