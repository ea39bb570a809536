"""End commands reliably on Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import CodeType, FrameType

SIGNAL_EXIT_BASE = 128
"""Exit codes above this one mean that a signal ended the command: the base plus the signal's number."""


_interrupted = threading.Event()


def was_interrupted() -> bool:
    """Return whether Ctrl-C was pressed, even if KeyboardInterrupt turned into another exception on its way.

    A library that is interrupted at its import, or in native code, may raise an error of its own.
    """
    return _interrupted.is_set()


def clear_interrupt() -> None:
    """Forget the Ctrl-C so far: the command has handled it, and goes on."""
    _interrupted.clear()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    raise KeyboardInterrupt


def _runs_in_main_thread(code: CodeType) -> bool:
    """Return whether the main thread is in a call of the function with this code."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def install_signal_handlers() -> None:
    """Make sure that no Ctrl-C and no SIGTERM is lost.

    An exception that a signal handler raises within a finalizer is dropped by Python. In this case the signal
    is sent again.
    """
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # else it is ignored, or has another handler
        signal.signal(signal.SIGINT, _interrupt)

    def resend_signal(unraisable: sys.UnraisableHookArgs) -> None:
        exc = unraisable.exc_value
        if isinstance(exc, KeyboardInterrupt):
            number = int(signal.SIGINT)
        elif isinstance(exc, SystemExit) and isinstance(exc.code, int) and exc.code > SIGNAL_EXIT_BASE:
            number = exc.code - SIGNAL_EXIT_BASE
        else:
            sys.__unraisablehook__(unraisable)
            return
        threading.Thread(target=send_after_hook, args=(number,), daemon=True).start()

    def send_after_hook(number: int) -> None:
        # Within the hook the exception would be dropped again.
        while _runs_in_main_thread(resend_signal.__code__):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sys.unraisablehook = resend_signal
