"""Run a program: start it without a shell, send its input, read its output, and kill it with its children.

The calling thread reads the output. The program leads a process group of its own. A cancelled stage ends the
whole group from another thread, so that it dies even if the reader is busy.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import re
import select
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gridq.errors import SeatUnavailable, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.stages.child_processes import kill_tree, list_tree

GRACE_SECONDS = 0.4
"""Time between SIGTERM and SIGKILL, in which a program can save its login."""

LINGER_SECONDS = 3.0
"""Time for a program to exit after its answer is complete."""

STRAGGLER_SECONDS = 0.5
"""Time to read the output after the program has ended. A child of it may hold the pipe open."""

POLL_SECONDS = 0.02
"""Interval of the checks for its end, on systems without pidfd."""

MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Limit of the output of one call. A program that writes more is broken."""

READ_BYTES = 256 * 1024
STDERR_BYTES = 8000
"""Bytes to keep of the end of stderr."""


class ProgramRun:
    """A running program. At the end of the `with` block, the program and its children are gone.

    Creating it raises OSError if the program cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        stdin: bytes,
        context: StageContext,
        silence: float,
        descriptors: Sequence[int] = (),
        hopeless: re.Pattern[str] | None = None,
    ) -> None:
        """Start the program.

        `stdin` is its input, `silence` the seconds that it may write nothing, `descriptors` those that it
        inherits. A match of `hopeless` on its stderr ends the wait for it.
        """
        self._context = context
        self._silence = silence
        self._input = memoryview(stdin)
        self._stderr: collections.deque[bytes] = collections.deque()
        self._stderr_bytes = 0
        self._hopeless = hopeless
        self._is_hopeless = False
        self._lock = threading.Lock()
        self._is_reaped = False
        self.is_done = False
        """The reader sets it once the answer is complete. The program then has LINGER_SECONDS to exit."""
        self.code: int | None = None
        """The exit code. A negative one is a signal."""
        self._process = subprocess.Popen(  # noqa: S603 an argv, no shell; the program is the owner's
            [*_make_parent_death_prefix(), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=dict(env),
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
        self._end_descriptor = _open_pidfd(self._process.pid)
        context.on_cancel(self._cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def stderr(self) -> str:
        """The end of its stderr."""
        return b"".join(self._stderr)[-STDERR_BYTES:].decode("utf-8", "replace")

    def read_output(self) -> Iterator[bytes]:
        """Yield the stdout as it arrives, until the program has ended.

        Raises JobCancelled and StageTimeout, and SeatUnavailable if the program is silent for too long or
        writes too much.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as ready:
            for pipe in (process.stdin, process.stdout, process.stderr):
                os.set_blocking(pipe.fileno(), False)
            ready.register(process.stdout, selectors.EVENT_READ, "out")
            ready.register(process.stderr, selectors.EVENT_READ, "err")
            ready.register(process.stdin, selectors.EVENT_WRITE, "in")
            if self._end_descriptor is not None:
                ready.register(self._end_descriptor, selectors.EVENT_READ, "end")
            last_output, size, until, is_swept = time.monotonic(), 0, None, False
            while True:
                events = ready.select(self._compute_timeout(last_output, until))
                # stderr first, so that a message written before the answer is read before it
                for key, _ in sorted(events, key=lambda event: event[0].data != "err"):
                    if key.data == "in":
                        self._write_input(ready)
                    elif key.data == "end":
                        ready.unregister(key.fileobj)
                    else:
                        data = self._read(ready, key)
                        size += len(data)
                        if key.data == "out" and data:
                            yield data
                        last_output = time.monotonic() if data else last_output
                self._context.check()
                if self._is_hopeless or (self.is_done and size > MAX_OUTPUT_BYTES):
                    return
                now = time.monotonic()
                open_pipes = {key.data for key in ready.get_map().values()}
                if self._has_ended():
                    if not is_swept:
                        self._signal(signal.SIGKILL)  # children that it has left behind
                        until, is_swept = now + STRAGGLER_SECONDS, True
                    assert until is not None
                    if not open_pipes & {"out", "err"} or now >= until:
                        return
                elif until is not None and now >= until:
                    return
                elif until is None and (self.is_done or "out" not in open_pipes):
                    until = now + LINGER_SECONDS
                elif until is None:
                    self._check_limits(now, last_output, size)

    def _compute_timeout(self, last_output: float, until: float | None) -> float:
        now = time.monotonic()
        ends = [last_output + self._silence if until is None else until]
        if self._context.deadline is not None and until is None:
            ends.append(self._context.deadline)
        if self._end_descriptor is None:
            ends.append(now + POLL_SECONDS)
        return max(0.0, min(ends) - now)

    def _check_limits(self, now: float, last_output: float, size: int) -> None:
        if self._context.deadline is not None and now >= self._context.deadline:
            raise StageTimeout("The model did not answer within the stage's time limit")
        if now >= last_output + self._silence:
            raise SeatUnavailable(f"The program wrote nothing for {self._silence:g} s")
        if size > MAX_OUTPUT_BYTES:
            raise SeatUnavailable(f"The program wrote more than {MAX_OUTPUT_BYTES} bytes")

    def _write_input(self, ready: selectors.BaseSelector) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            if self._input:
                self._input = self._input[os.write(stdin.fileno(), self._input[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # it stopped reading; its own output will say why
            self._input = self._input[:0]
        if not self._input:
            ready.unregister(stdin)
            with contextlib.suppress(OSError):
                stdin.close()

    def _read(self, ready: selectors.BaseSelector, key: selectors.SelectorKey) -> bytes:
        try:
            data = os.read(key.fd, READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            ready.unregister(key.fileobj)
        elif key.data == "err":
            self._stderr.append(data)
            self._stderr_bytes += len(data)
            while self._stderr_bytes - len(self._stderr[0]) > STDERR_BYTES:
                self._stderr_bytes -= len(self._stderr.popleft())
            if self._hopeless is not None and self._hopeless.search(self.stderr):
                self._is_hopeless = True
        return data

    def _has_ended(self) -> bool:
        """Return whether it has ended. It is not reaped yet, so that its process group id is not reused."""
        with self._lock:
            if self._is_reaped:
                return True
            if sys.platform != "linux":
                return self._process.poll() is not None
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                return os.waitid(os.P_PID, self._process.pid, how) is not None
            except ChildProcessError:  # other code in this process has reaped it
                self._is_reaped = True
                return True

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._is_reaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _cancel(self) -> None:
        threading.Thread(target=self._kill, name="gridq-cli-kill", daemon=True).start()

    def _kill(self) -> None:
        """Terminate the process group, then kill it, along with descendants in groups of their own.

        A program's tools start such groups.
        """
        with contextlib.ExitStack() as stack:
            descendants = self._list_descendants(stack)
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            while not self._has_ended() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            descendants |= self._list_descendants(stack)
            self._signal(signal.SIGKILL)
            for pid, pidfd in descendants.items():
                if not _is_readable(pidfd):  # still running, so its pid is not reused
                    kill_tree(pid)

    def _list_descendants(self, stack: contextlib.ExitStack) -> dict[int, int]:
        """Return the pidfds of its descendants by pid, none on systems without pidfd. `stack` closes them."""
        with self._lock:
            pids = [] if self._is_reaped else list_tree(self._process.pid)[1:]
        descendants = {pid: pidfd for pid in pids if (pidfd := _open_pidfd(pid)) is not None}
        for pidfd in descendants.values():
            stack.callback(os.close, pidfd)
        return descendants

    def end(self) -> None:
        """End the program if it still runs, and wait until it is gone."""
        if self.code is not None:
            return
        if self._has_ended():
            self._signal(signal.SIGKILL)
        else:
            self._kill()
        with self._lock:
            self.code = self._process.wait()
            self._is_reaped = True
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._end_descriptor is not None:
            os.close(self._end_descriptor)


def run_to_end(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, seconds: float
) -> tuple[int | None, str]:
    """Run a short program. Return its exit code and its output, stderr last.

    The exit code is None if it does not end within `seconds`. Raises OSError if it cannot be started.
    """
    context = StageContext(deadline=time.monotonic() + seconds)
    with ProgramRun(argv, env=env, folder=folder, stdin=b"", context=context, silence=seconds) as run:
        try:
            output = b"".join(run.read_output())
        except (StageTimeout, SeatUnavailable):
            return None, ""
        run.end()
    return run.code, output.decode("utf-8", "replace") + run.stderr


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when `pid` ends, None on systems without pidfd."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return os.pidfd_open(pid)
    return None


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@functools.cache
def _make_parent_death_prefix() -> tuple[str, ...]:
    """Return a command prefix that ends a program with its worker, even if the worker is killed.

    Otherwise the program would continue at the owner's cost, beside the next worker's call on the same login.
    """
    helper = shutil.which("setpriv") if sys.platform == "linux" else None
    if helper is None:
        return ()
    prefix = (helper, "--pdeathsig", "KILL", "--")
    command = [*prefix, sys.executable, "--version"]
    try:  # a minimal setpriv, such as busybox's, does not have the option
        result = subprocess.run(command, capture_output=True, timeout=5, check=False)  # noqa: S603 see above
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return prefix if result.returncode == 0 else ()
