"""Look at processes."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int | str) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
