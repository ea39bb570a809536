"""A child that must not outlive the program that started it, also where that one was killed."""

from __future__ import annotations

import os
import signal
import threading
import time

VARIABLE = "GRIDQ_PARENT"
SECONDS = "GRIDQ_PARENT_SECONDS"
LOOK = 0.5
GRACE = 30.0


def supervised() -> bool:
    """Whether a program of the grid has started this one, and lives: it starts it again where it ends."""
    return os.environ.get(VARIABLE, "") == str(os.getppid())


def watch() -> None:
    """Where GRIDQ_PARENT names the process that started this one: end when it has gone, orderly if that takes
    no longer than GRIDQ_PARENT_SECONDS (GRACE without it).
    """
    text = os.environ.get(VARIABLE, "")
    if text.isdecimal():
        grace = float(os.environ.get(SECONDS) or GRACE)
        threading.Thread(target=_watch, args=(int(text), grace), name="parent", daemon=True).start()


def _watch(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os._exit(1)
