"""Suspend processes, and resume them even if the chaos run itself is killed.

A suspended program notices neither the end of its parent nor a SIGTERM, so it would stay for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

_GUARD = """
import contextlib, os, signal, sys
stopped = set()
for line in sys.stdin:
    pid = int(line)
    if pid > 0:
        stopped.add(pid)
    else:
        stopped.discard(-pid)
for pid in stopped:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGCONT)
"""


class Suspender:
    """Suspends and resumes processes. Those that are suspended when this process ends are resumed then."""

    def __init__(self) -> None:
        # A separate process waits for the end of a pipe that only this process holds open.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
        )

    def stop(self, pid: int) -> None:
        """SIGSTOP. ProcessLookupError: it has ended."""
        self._note(pid)
        os.kill(pid, signal.SIGSTOP)

    def resume(self, pid: int) -> None:
        """SIGCONT. The process may have ended, or never have been suspended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._note(-pid)

    def close(self) -> None:
        """Resume all processes. Nothing may be suspended afterwards."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()

    def _note(self, pid: int) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it was killed, or closed
            self._guard.stdin.write(f"{pid}\n".encode())
            self._guard.stdin.flush()
