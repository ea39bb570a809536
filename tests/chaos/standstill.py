"""What a chaos run stops goes on again also where the run itself is killed meanwhile.

A program that stands still sees neither that its parent is gone nor a SIGTERM, so it would be left for ever.
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


class Standstill:
    """Stops processes and lets them go on; whichever still stands when this process ends goes on then."""

    def __init__(self) -> None:
        # A process of its own that waits for the end of a pipe which only this one holds open.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
        )

    def stop(self, pid: int) -> None:
        """SIGSTOP. ProcessLookupError: it has ended."""
        self._note(pid)
        os.kill(pid, signal.SIGSTOP)

    def go_on(self, pid: int) -> None:
        """SIGCONT, where the process is there; it may be one that never stood still."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._note(-pid)

    def close(self) -> None:
        """Let all of them go on. Nothing is stopped afterwards."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()

    def _note(self, pid: int) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it was killed, or closed
            self._guard.stdin.write(f"{pid}\n".encode())
            self._guard.stdin.flush()
