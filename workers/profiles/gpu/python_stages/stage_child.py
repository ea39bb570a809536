"""The worker's side of a stage's process: start it, pass on its reports, end it and all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gridq.config.settings import settings
from gridq.errors import (
    ChildDied,
    GridError,
    SeatUnavailable,
    StageMemoryExceeded,
    StageTimeout,
    error_from_record,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall, Usage
from gridq.stages import python
from gridq.stages.child_processes import kill_tree, list_tree
from workers.profiles.gpu.model_process import make_child_environment

MODULE = "workers.profiles.gpu.python_stages.stage_process"
WATCH_SECONDS = 0.5
"""Interval at which the memory and the time limit of a stage are checked."""

END_SECONDS = 6.0
"""How long a process may take to end what its stage started, before it is killed itself."""


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
        status: int | None = None
        has_started = False
        try:
            on_spawn(process.pid)
            self._order(process, stage, value, context)
            assert process.stdout is not None
            for line in process.stdout:
                reply = _parse(line)
                if "started" in reply:
                    has_started = True
                elif "pieces" in reply:
                    context.emit(*reply["pieces"])
                elif "usage" in reply:
                    self._report(context, Usage.model_validate(reply["usage"]))
                elif "dropped" in reply:
                    context.drop_field(reply["dropped"])
                elif "exit" in reply:
                    status = reply["exit"]
                    break
                elif "output" in reply or "error" in reply:
                    final = reply
                    self.pids.update(list_tree(process.pid))
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
            error = error_from_record(final["error"])
            error.traceback = final.get("traceback", "")
            raise error
        if not has_started:  # it ran nothing of the stage
            raise SeatUnavailable("The process of the stage did not start; the worker's log has the reason")
        how = "" if status is None else f" (signal {-status})" if status < 0 else f" (exit code {status})"
        raise ChildDied(f"The process of the stage died{how}", {"memory_mb": self.max_used_mb or None})

    def _report(self, context: StageContext, usage: Usage | None = None) -> None:
        """Report `usage`, or that of before, with the seconds until now."""
        with self._report_lock:
            context.report(context.usage if usage is None else usage)

    def close(self) -> None:
        """Begin to end the stage because its seat closes."""
        self._fault = self._fault or make_closing_error()
        self.end()

    def end(self) -> None:
        """Begin to kill the stage with all of its descendants. Any thread may call it, more than once."""
        with self._lock:
            self._is_ending = True
            if self._process is not None and not self._is_ordered:
                self._process.kill()  # it has started nothing yet
            self._close_input()

    def _close_input(self) -> None:
        """Close the pipe, unless the order is being written to it: at its end the process kills the stage."""
        process = self._process
        if self._is_ordered and process is not None and process.stdin is not None:
            process.stdin.close()

    def _spawn(self, stage: StageCall) -> subprocess.Popen[bytes] | None:
        environment = make_child_environment(self._devices)
        environment["GRIDQ_STAGES"] = python.parse_module(stage.implementation)
        environment["GRIDQ_MAX_VALUE"] = str(settings().max_value)
        with self._lock:
            if self._is_ending:
                return None
            self._process = process = subprocess.Popen(  # noqa: S603 our own module, no shell
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
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
        return StageMemoryExceeded(
            f"The stage {stage.name!r} held {self.used_mb} MB of its device; it reserved {self._limit_mb} MB",
            {
                "memory_mb": self._limit_mb,
                "used_mb": self.used_mb,
                "fix": f"raise memory_mb of its Gpu effect to {self.used_mb} or more, or let it use less",
            },
        )

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def make_closing_error() -> SeatUnavailable:
    return SeatUnavailable("The seat is closing", {"retry_after": 0})


def _parse(line: bytes) -> dict[str, Any]:
    """Return a reply. A line that a killed process left unfinished is none."""
    try:
        reply = json.loads(line)
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}
