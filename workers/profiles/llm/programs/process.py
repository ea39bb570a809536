"""One run of a program: started without a shell, told its input, read while it runs, killed with all it
started.

The calling thread does the reading. The program is the head of a process group of its own; a cancelled stage
ends the whole group from another thread, so that it dies even where the reader is kept busy.
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
"""Between the wish that a program ends, in which it may put its login in order, and its end."""

LINGER_SECONDS = 3.0
"""How long a program that has said all may take to end by itself."""

STRAGGLER_SECONDS = 0.5
"""How long its output is read on once it has ended: something that it started may still hold it open."""

POLL_SECONDS = 0.02
"""Between two looks whether it has ended, where the system cannot tell it by itself."""

MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""A program that writes more than this for one answer is broken."""

READ_BYTES = 256 * 1024
STDERR_BYTES = 8000
"""Bytes of stderr that are kept, its last ones."""


class ProgramRun:
    """A program that runs, as a context manager: it is gone when the block is left, and all it started too.

    OSError: it cannot be started.
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
        keep: Sequence[int] = (),
        hopeless: re.Pattern[str] | None = None,
    ) -> None:
        """`stdin` is its input, `silence` the seconds for which it may write nothing, `keep` the descriptors
        that it inherits, `hopeless` words on its stderr after which it is not waited for.
        """
        self._context = context
        self._silence = silence
        self._input = memoryview(stdin)
        self._errors: collections.deque[bytes] = collections.deque()
        self._kept = 0
        self._hopeless = hopeless
        self._given_up = False
        self._lock = threading.Lock()
        self._reaped = False
        self.done = False
        """Set by the reader where it has heard all: the program is then not waited for long."""
        self.code: int | None = None
        """How it ended; negative: by a signal."""
        self._process = subprocess.Popen(  # noqa: S603 an argv, no shell; the program is the owner's
            [*_with_parent(), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=dict(env),
            start_new_session=True,
            pass_fds=tuple(keep),
        )
        self._ended = _ending(self._process.pid)
        context.on_cancel(self._cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def stderr(self) -> str:
        """The end of what it wrote there."""
        return b"".join(self._errors)[-STDERR_BYTES:].decode("utf-8", "replace")

    def lumps(self) -> Iterator[bytes]:
        """Its stdout as it comes, until it has ended.

        JobCancelled, StageTimeout: it is dead by then. SeatUnavailable: it was silent for too long or wrote
        too much.
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
            if self._ended is not None:
                ready.register(self._ended, selectors.EVENT_READ, "end")
            heard, wrote, until, swept = time.monotonic(), 0, None, False
            while True:
                events = ready.select(self._wait(heard, until))
                # stderr first: what it says there before its answer is known before it
                for key, _ in sorted(events, key=lambda event: event[0].data != "err"):
                    if key.data == "in":
                        self._tell(ready)
                    elif key.data == "end":
                        ready.unregister(key.fileobj)
                    else:
                        lump = self._read(ready, key)
                        wrote += len(lump)
                        if key.data == "out" and lump:
                            yield lump
                        heard = time.monotonic() if lump else heard
                self._context.check()
                if self._given_up or (self.done and wrote > MAX_OUTPUT_BYTES):
                    return
                now = time.monotonic()
                open_ = {key.data for key in ready.get_map().values()}
                if self._gone():
                    if not swept:
                        self._signal(signal.SIGKILL)  # what it has left behind
                        until, swept = now + STRAGGLER_SECONDS, True
                    assert until is not None
                    if not open_ & {"out", "err"} or now >= until:
                        return
                elif until is not None and now >= until:
                    return
                elif until is None and (self.done or "out" not in open_):
                    until = now + LINGER_SECONDS
                elif until is None:
                    self._judge(now, heard, wrote)

    def _wait(self, heard: float, until: float | None) -> float:
        now = time.monotonic()
        ends = [heard + self._silence if until is None else until]
        if self._context.deadline is not None and until is None:
            ends.append(self._context.deadline)
        if self._ended is None:
            ends.append(now + POLL_SECONDS)
        return max(0.0, min(ends) - now)

    def _judge(self, now: float, heard: float, wrote: int) -> None:
        if self._context.deadline is not None and now >= self._context.deadline:
            raise StageTimeout("The model did not answer within the stage's time")
        if now >= heard + self._silence:
            raise SeatUnavailable(f"The program wrote nothing for {self._silence:g} s")
        if wrote > MAX_OUTPUT_BYTES:
            raise SeatUnavailable(f"The program wrote more than {MAX_OUTPUT_BYTES} bytes")

    def _tell(self, ready: selectors.BaseSelector) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            if self._input:
                self._input = self._input[os.write(stdin.fileno(), self._input[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # it reads no further: what it makes of that, it says itself
            self._input = self._input[:0]
        if not self._input:
            ready.unregister(stdin)
            with contextlib.suppress(OSError):
                stdin.close()

    def _read(self, ready: selectors.BaseSelector, key: selectors.SelectorKey) -> bytes:
        try:
            lump = os.read(key.fd, READ_BYTES)
        except BlockingIOError:
            return b""
        if not lump:
            ready.unregister(key.fileobj)
        elif key.data == "err":
            self._errors.append(lump)
            self._kept += len(lump)
            while self._kept - len(self._errors[0]) > STDERR_BYTES:
                self._kept -= len(self._errors.popleft())
            if self._hopeless is not None and self._hopeless.search(self.stderr):
                self._given_up = True
        return lump

    def _gone(self) -> bool:
        """Whether it has ended. It is not reaped yet, so that its group's number stays its own."""
        with self._lock:
            if self._reaped:
                return True
            if sys.platform != "linux":
                return self._process.poll() is not None
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                return os.waitid(os.P_PID, self._process.pid, how) is not None
            except ChildProcessError:  # somebody else in this process has taken its end
                self._reaped = True
                return True

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _cancel(self) -> None:
        threading.Thread(target=self._kill, name="gridq-cli-kill", daemon=True).start()

    def _kill(self) -> None:
        """End the group, asked first, then not; and what it has started in groups of their own, as its tools
        do with what they run.
        """
        with contextlib.ExitStack() as held:
            below = self._below(held)
            self._signal(signal.SIGTERM)
            until = time.monotonic() + GRACE_SECONDS
            while not self._gone() and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
            below |= self._below(held)
            self._signal(signal.SIGKILL)
            for pid, ending in below.items():
                if not _is_readable(ending):  # its number is still its own
                    kill_tree(pid)

    def _below(self, held: contextlib.ExitStack) -> dict[int, int]:
        """The processes below it, each with a descriptor that tells its end; none where the system tells
        neither.
        """
        with self._lock:
            below = [] if self._reaped else list_tree(self._process.pid)[1:]
        found = {pid: ending for pid in below if (ending := _ending(pid)) is not None}
        for ending in found.values():
            held.callback(os.close, ending)
        return found

    def end(self) -> None:
        """End what still runs, and wait until it is gone."""
        if self.code is not None:
            return
        if self._gone():
            self._signal(signal.SIGKILL)
        else:
            self._kill()
        with self._lock:
            self.code = self._process.wait()
            self._reaped = True
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._ended is not None:
            os.close(self._ended)


def run_to_end(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, seconds: float
) -> tuple[int | None, str]:
    """How a short program ended and all that it wrote; None: it did not end within `seconds`.

    OSError: it cannot be started.
    """
    context = StageContext(deadline=time.monotonic() + seconds)
    with ProgramRun(argv, env=env, folder=folder, stdin=b"", context=context, silence=seconds) as run:
        try:
            wrote = b"".join(run.lumps())
        except (StageTimeout, SeatUnavailable):
            return None, ""
        run.end()
    return run.code, wrote.decode("utf-8", "replace") + run.stderr


def _ending(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends, where the system has such."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return os.pidfd_open(pid)
    return None


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@functools.cache
def _with_parent() -> tuple[str, ...]:
    """What makes a program end with the worker that started it, even where that is killed: else it would go
    on at the owner's cost, beside the next worker's call on the same login.
    """
    helper = shutil.which("setpriv") if sys.platform == "linux" else None
    if helper is None:
        return ()
    prefix = (helper, "--pdeathsig", "KILL", "--")
    attempt = [*prefix, sys.executable, "--version"]
    try:  # a small one, such as busybox's, knows no such option
        known = subprocess.run(attempt, capture_output=True, timeout=5, check=False)  # noqa: S603 see above
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return prefix if known.returncode == 0 else ()
