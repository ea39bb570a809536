"""The process between a worker and an engine that it starts: `python -I FILE PROGRAM ARGUMENT…`.

It starts the program in a process group of its own, and ends the whole group when its own input ends: when
the worker closes it, and also if the worker is killed. On Linux the kernel ends the program if this process
is killed. It exits as the program did.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

STOP_SECONDS = 10.0
"""Time for the engine to end after SIGTERM, before its group is killed."""

NOT_STARTED = 127
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the program of the arguments and exit as it does, with NOT_STARTED if it cannot be started."""
    try:
        engine = subprocess.Popen(  # noqa: S603 the owner's command, no shell
            sys.argv[1:],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_request_death_with_parent,  # noqa: PLW1509 this process has one thread
        )
    except OSError as exc:
        print(f"{sys.argv[1]} cannot be started: {exc.strerror}", file=sys.stderr)
        sys.exit(NOT_STARTED)
    threading.Thread(target=_stop_with_input, args=(engine,), daemon=True).start()
    code = engine.wait()
    _signal_group(engine, signal.SIGKILL)  # what it left behind
    sys.exit(code if code >= 0 else 128 - code)


def _stop_with_input(engine: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _signal_group(engine, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        engine.wait(STOP_SECONDS)
    _signal_group(engine, signal.SIGKILL)


def _signal_group(engine: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(engine.pid, number)


def _request_death_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
