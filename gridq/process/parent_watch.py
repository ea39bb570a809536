"""End this process when the program that started it is gone, even if that was killed."""

from __future__ import annotations

import os
import signal
import threading
import time

PARENT_VARIABLE = "GRIDQ_PARENT"
"""The id of the process that supervises this one."""

GRACE_VARIABLE = "GRIDQ_PARENT_SECONDS"
GRACE_SECONDS = 30.0
"""The time in which this process must end, unless GRIDQ_PARENT_SECONDS says otherwise."""

CHECK_SECONDS = 0.5


def is_supervised() -> bool:
    """Return whether a live program of the grid supervises this process, and so restarts it when it ends."""
    return os.environ.get(PARENT_VARIABLE, "") == str(os.getppid())


def end_with_parent() -> None:
    """End this process when the one that GRIDQ_PARENT names is gone: first by SIGTERM, then for good."""
    text = os.environ.get(PARENT_VARIABLE, "")
    if text.isdecimal():
        grace = float(os.environ.get(GRACE_VARIABLE) or GRACE_SECONDS)
        threading.Thread(target=_watch, args=(int(text), grace), name="parent", daemon=True).start()


def _watch(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os._exit(1)
