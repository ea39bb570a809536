"""Ctrl-C and SIGTERM, which end a command as exceptions."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

SIGNALLED = 128
"""A command that a signal ends by a handler of its own exits with this and the signal's number."""


_interrupted = threading.Event()


def interrupted() -> bool:
    """Whether Ctrl-C was pressed, also where its exception was made into another on the way: a library that
    is struck at its import, or in code that is no Python, ends with an error of its own.
    """
    return _interrupted.is_set()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    raise KeyboardInterrupt


def heed_signals() -> None:
    """Let no Ctrl-C and no SIGTERM be lost. What its handler raises is dropped where it strikes a finalizer,
    from which nothing propagates: the signal is sent once more then.
    """

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or another's
        signal.signal(signal.SIGINT, _interrupt)

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        exc = unraisable.exc_value
        if isinstance(exc, KeyboardInterrupt):
            number = int(signal.SIGINT)
        elif isinstance(exc, SystemExit) and isinstance(exc.code, int) and exc.code > SIGNALLED:
            number = exc.code - SIGNALLED
        else:
            sys.__unraisablehook__(unraisable)
            return
        # Later, and by a thread: within this hook it would be dropped again.
        again = threading.Timer(0.01, os.kill, [os.getpid(), number])
        again.daemon = True
        again.start()

    sys.unraisablehook = dropped
