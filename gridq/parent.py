"""A child that must not outlive the program that started it, also where that one was killed."""

from __future__ import annotations

import os
import signal
import threading
import time

VARIABLE = "GRIDQ_PARENT"
LOOK = 0.5
GRACE = 30.0


def watch() -> None:
    """Where GRIDQ_PARENT names the process that started this one: end when it has gone."""
    text = os.environ.get(VARIABLE, "")
    if text.isdecimal():
        threading.Thread(target=_watch, args=(int(text),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
