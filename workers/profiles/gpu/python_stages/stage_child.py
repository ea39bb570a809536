"""A stage's process as its worker sees it: start it, pass on its reports, end it and all that it started."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gridq.config.settings import settings
from gridq.errors import (
    ChildDied,
    GridError,
    SeatUnavailable,
    StageError,
    StageMemoryExceeded,
    StageTimeout,
    error_from_record,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall, Usage
from gridq.stages import python
from gridq.stages.child_processes import kill_tree, list_tree
from workers.profiles.gpu.devices.processes import list_by_variable
from workers.profiles.gpu.loaded_models import make_closing_error
from workers.profiles.gpu.model_process import make_child_environment

MODULE = "workers.profiles.gpu.python_stages.stage_process"
MARK_VARIABLE = "GRIDQ_STAGE_PROCESS"
"""Marks the processes of one stage."""

WATCH_SECONDS = 0.5
"""Interval at which the memory and the time limit of a stage are checked."""

END_SECONDS = 6.0
"""How long a process may take to end what its stage started, before it is killed itself."""

POLL_SECONDS = 0.01
READ_BYTES = 65536
MEMORY_MARGIN = 1.25
"""The memory that is suggested to a stage that exceeded its own, as a multiple of what it held when it was
killed: it was taking more.
"""

MAX_ESCAPED = 6
"""The most bytes that JSON in ASCII takes for one byte of a value."""

MAX_EXTRA_BYTES = 1024 * 1024
"""The longest line without a value, such as an error with its traceback."""


class StageChild:
    """The process of one stage, which sees the device that `devices` names and no other.

    `limit_mb` is the memory of the device that it and its descendants may hold together, as `measure_mb`
    tells for the process id; None: it is not known.
    """

    def __init__(
        self, devices: Mapping[str, str], limit_mb: int, measure_mb: Callable[[int], int | None]
    ) -> None:
        self.pid: int | None = None
        self.used_mb = 0
        """Its memory when it was measured last."""
        self.max_used_mb = 0
        self.pids: set[int] = set()
        """The processes that it has been seen to consist of."""
        self._mark = secrets.token_hex(16)
        self._end_at: float | None = None
        self._devices = devices
        self._limit_mb = limit_mb
        self._measure_mb = measure_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._is_ordered = False
        self._is_ending = False
        self._fault: GridError | None = None
        self._report_lock = threading.Lock()

    def run(
        self, stage: StageCall, value: Json, context: StageContext, on_spawn: Callable[[int], None]
    ) -> Json:
        """Run `stage` and return its output. Nothing of it is left when this returns or raises.

        Raises the stage's own error, StageMemoryExceeded, StageTimeout, JobCancelled, SeatUnavailable if the
        seat closes or no process starts, and ChildDied if the process died.
        """
        context.on_cancel(self.end)
        process = self._spawn(stage)
        if process is None:
            context.check()
            raise make_closing_error()
        watcher = threading.Thread(
            target=self._watch, args=(stage, context), name="gridq-stage-watch", daemon=True
        )
        watcher.start()
        final: dict[str, Any] = {}
        status: Json = None
        has_started = False
        try:
            on_spawn(process.pid)
            self._order(process, stage, value, context)
            for line in self._read_lines(process):
                reply = _parse(line)
                if "started" in reply:
                    has_started = True
                elif "exit" in reply:
                    status = reply["exit"]
                    break
                elif "output" in reply or "error" in reply:
                    final = reply
                    self.pids.update(list_tree(process.pid))
                else:
                    self._pass_on(reply, context)
        finally:
            self.end()
            self._await_end(process)
            self._has_ended.set()
            watcher.join()
            self._report(context)
        context.check()
        if self._fault is not None:
            raise self._fault
        if "output" in final:
            return final["output"]
        if "error" in final:
            raise _make_own_error(final)
        if not has_started:  # it ran nothing of the stage
            raise SeatUnavailable("The process of the stage did not start; the worker's log has the reason")
        how = ""
        if isinstance(status, int):
            how = f" (signal {-status})" if status < 0 else f" (exit code {status})"
        raise ChildDied(f"The process of the stage died{how}", {"memory_mb": self.max_used_mb or None})

    def _pass_on(self, reply: dict[str, Any], context: StageContext) -> None:
        """Pass on what the stage reports. The stage is ended if it wrote something else to the pipe."""
        try:
            if "pieces" in reply:
                context.emit(*reply["pieces"])
            elif "usage" in reply:
                self._report(context, Usage.model_validate(reply["usage"]))
            elif "dropped" in reply:
                context.drop_field(str(reply["dropped"]))
        except (TypeError, ValueError):
            self._end_with(_make_garbage_error())

    def _read_lines(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Yield lines until the pipe ends, until the process died and the pipe, which others may still hold,
        is silent, or until END_SECONDS after the stage was to end.
        """
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        limit = MAX_ESCAPED * settings().max_value + MAX_EXTRA_BYTES
        unfinished = bytearray()
        while not self._is_late():
            has_died = process.poll() is not None
            if not poll.poll(0 if has_died else WATCH_SECONDS * 1000):
                if has_died:
                    return
                continue
            part = os.read(pipe, READ_BYTES)
            if not part:
                return
            before, newline, rest = part.rpartition(b"\n")
            if newline:
                yield from bytes(unfinished + before).split(b"\n")
                unfinished = bytearray(rest)
            else:
                unfinished += part
            if len(unfinished) > limit:
                self._end_with(_make_garbage_error())
                unfinished.clear()

    def _report(self, context: StageContext, usage: Usage | None = None) -> None:
        """Report `usage`, or that of before, with the seconds until now."""
        with self._report_lock:
            context.report(context.usage if usage is None else usage)

    def close(self) -> None:
        """Begin to end the stage because its seat closes."""
        self._end_with(make_closing_error())

    def _end_with(self, fault: GridError) -> None:
        self._fault = self._fault or fault
        self.end()

    def end(self) -> None:
        """Begin to kill the stage with all of its descendants. Any thread may call it, more than once."""
        with self._lock:
            self._is_ending = True
            if self._end_at is None:
                self._end_at = time.monotonic() + END_SECONDS
            if self._process is not None and not self._is_ordered:
                self._process.kill()  # it has started nothing yet
            elif self._process is not None:
                # should the stage, or somebody else, have stopped it
                self._process.send_signal(signal.SIGCONT)
            self._close_input()

    def _close_input(self) -> None:
        """Close the pipe, unless the order is being written to it: at its end the process kills the stage."""
        process = self._process
        if self._is_ordered and process is not None and process.stdin is not None:
            process.stdin.close()

    def _is_late(self) -> bool:
        return self._end_at is not None and time.monotonic() >= self._end_at

    def _spawn(self, stage: StageCall) -> subprocess.Popen[bytes] | None:
        environment = make_child_environment(self._devices)
        environment["GRIDQ_STAGES"] = python.parse_module(stage.implementation)
        environment[MARK_VARIABLE] = self._mark
        environment["GRIDQ_MAX_VALUE"] = str(settings().max_value)
        with self._lock:
            if self._is_ending:
                return None
            try:
                self._process = process = subprocess.Popen(  # noqa: S603 our own module, no shell
                    [sys.executable, "-m", MODULE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as exc:  # the machine has no process, memory or descriptor left
                raise SeatUnavailable(
                    "No process could be started for the stage", {"reason": exc.strerror or str(exc)}
                ) from None
        self.pid = process.pid
        return process

    def _order(
        self, process: subprocess.Popen[bytes], stage: StageCall, value: Json, context: StageContext
    ) -> None:
        order = {
            "implementation": stage.implementation,
            "value": value,
            "job": context.job,
            "agent": context.agent,
            "attempt": context.attempt,
            "deadline": context.deadline,
            "is_streaming": context.is_streaming,
            "sys_path": sys.path,
            "parent": os.getpid(),
        }
        line = memoryview(json.dumps(order, separators=(",", ":")).encode("ascii") + b"\n")
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, as its output will tell
            while line:
                line = line[os.write(process.stdin.fileno(), line) :]
        with self._lock:
            self._is_ordered = True
            if self._is_ending:
                self._close_input()

    def _watch(self, stage: StageCall, context: StageContext) -> None:
        """Check the limits of the stage until it has ended."""
        assert self.pid is not None
        while not self._has_ended.wait(WATCH_SECONDS):
            self._report(context)  # should its lease be lost
            self.pids.update(list_tree(self.pid))
            self.used_mb = self._measure_mb(self.pid) or 0
            self.max_used_mb = max(self.max_used_mb, self.used_mb)
            if self._fault is not None:
                continue
            if self.used_mb > self._limit_mb:
                self._fault = self._make_memory_error(stage)
            elif context.deadline is not None and time.monotonic() >= context.deadline:
                self._fault = StageTimeout("The stage did not end within its time limit")
            else:
                continue
            self.end()

    def _make_memory_error(self, stage: StageCall) -> StageMemoryExceeded:
        wanted = math.ceil(self.used_mb * MEMORY_MARGIN / 100) * 100
        return StageMemoryExceeded(
            f"The stage {stage.name!r} held {self.used_mb} MB of its device; it reserved {self._limit_mb} MB",
            {
                "memory_mb": self._limit_mb,
                "used_mb": self.used_mb,
                "fix": f"raise memory_mb of its Gpu effect to {wanted} or more, or let it use less",
            },
        )

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the process has ended, and kill what it could not, because it hung or was killed."""
        assert self._end_at is not None
        try:
            process.wait(max(0.0, self._end_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            process.wait()
        if process.returncode:
            self._kill_marked()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _kill_marked(self) -> None:
        """Kill what the process would have killed at its own end: some may have left it for good."""
        end = time.monotonic() + END_SECONDS
        while (marked := list_by_variable(MARK_VARIABLE, self._mark)) and time.monotonic() < end:
            for pid in marked:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)


def _make_garbage_error() -> StageError:
    return StageError(
        "The stage wrote to the pipe of its process, which only gridq may use",
        {"fix": "let it write to files that it opened itself"},
    )


def _make_own_error(reply: dict[str, Any]) -> GridError:
    """Return the error that the stage ended with."""
    try:
        error = error_from_record(reply["error"])
    except (AttributeError, TypeError, ValueError):
        return _make_garbage_error()
    error.traceback = str(reply.get("traceback", ""))
    return error


def _parse(line: bytes) -> dict[str, Any]:
    """Return a reply. A line that a killed process left unfinished is none."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return reply if isinstance(reply, dict) else {}
