"""Supervise child processes: one that ends by itself is restarted after a delay, which doubles each time. One
that ends too often is given up; the others go on.
"""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from gridq.errors import GridError
from workers.supervisor import programs

FIRST_DELAY_SECONDS = 0.5
"""Seconds until a part that ended is restarted. The delay doubles with each further end."""
MAX_EXITS = 5
"""Ends within EXIT_WINDOW_SECONDS after which a part is given up."""
EXIT_WINDOW_SECONDS = 60.0


class Part(Protocol):
    """A supervised program: `workers.supervisor.programs.Program`, or the embedded server."""

    @property
    def name(self) -> str: ...

    @property
    def stop_order(self) -> int:
        """Its place in the order of shutdown: the lowest stops first."""

    @property
    def log(self) -> Path:
        """The file that its output goes to."""

    @property
    def stop_timeout(self) -> float:
        """Seconds after SIGTERM until it is killed."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start it. GridError, OSError: it could not be started."""

    def last_log_line(self) -> str:
        """Return the last line of its output."""


@dataclass(slots=True)
class Child:
    """The state of one supervised part. Times are monotonic, but `started_at`: seconds since 1970."""

    part: Part
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    restart_at: float = 0.0
    gave_up_reason: str = ""
    kill_at: float | None = None
    successor: Part | None = None
    exit_times: deque[float] = field(default_factory=deque)

    @property
    def state(self) -> str:
        """`running`, `restarting`, `stopping` or `given up`."""
        if self.gave_up_reason:
            return "given up"
        if self.kill_at is not None:
            return "stopping"
        return "running" if self.process is not None else "restarting"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.part.name,
            "pid": self.process.pid if self.process else None,
            "state": self.state,
            "started_at": self.started_at if self.process else None,
            "restarts": self.restarts,
            "reason": self.gave_up_reason,
        }


class Supervisor:
    """Starts, restarts and stops parts. Use it from one thread, which must live as long as the parts.

    `report` gets a line for each event. `on_exit(part, pid, died)` is called when a part has ended by itself
    (`died`), before it is restarted, or had to be killed. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        *,
        on_exit: Callable[[Part, int, bool], None] = lambda part, pid, died: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report = report
        self.on_exit = on_exit
        self.clock = clock
        self.children: dict[str, Child] = {}

    def add(self, part: Part) -> Child:
        """Start a part and supervise it."""
        child = self.children[part.name] = Child(part)
        self._start(child)
        return child

    def replace(self, part: Part) -> None:
        """Stop the part of the same name and start `part` once it has ended; if there is none, add `part`."""
        child = self.children.get(part.name)
        if child is None or child.process is None:
            self.add(part)
            return
        child.successor = part
        if child.kill_at is None:
            self._terminate(child)

    def remove(self, name: str) -> None:
        """Stop the part `name` and no longer supervise it."""
        child = self.children[name]
        child.successor = None
        if child.process is None:
            del self.children[name]
        elif child.kill_at is None:
            self._terminate(child)

    def check(self) -> bool:
        """Restart, kill and remove the parts for which that is due. Return whether anything changed."""
        changed = False
        for name, child in list(self.children.items()):
            if child.process is not None and child.process.poll() is not None:
                changed = True
                if child.kill_at is not None:
                    del self.children[name]
                    if child.successor is not None:
                        self.add(child.successor)
                else:
                    self._handle_exit(child, _describe_exit(child.process))
            elif child.process is not None and child.kill_at is not None and self.clock() > child.kill_at:
                programs.kill_process(child.process)
                self.on_exit(child.part, child.process.pid, False)
                self.report(f"{name} did not stop within {child.part.stop_timeout:g} s and was killed")
                changed = True
            elif child.state == "restarting" and self.clock() >= child.restart_at:
                child.restarts += 1
                self._start(child)
                changed = True
        return changed

    def next_due_in(self) -> float:
        """Return the seconds until `check` is due, at most one. The end of a child raises SIGCHLD."""
        due = [child.restart_at for child in self.children.values() if child.state == "restarting"]
        due += [child.kill_at for child in self.children.values() if child.kill_at is not None]
        return min([1.0, *(max(0.0, at - self.clock()) for at in due)])

    def stop(self, pause: Callable[[float], bool] = programs.sleep) -> list[str]:
        """Stop all parts by their `stop_order`, and return the names of those that had to be killed.

        `pause(seconds)` waits. Once it returns True, the stop is urgent: the rest is killed soon, but for the
        server, which keeps its time to write its data.
        """
        killed = []
        urgent = False

        def pause_or_hurry(seconds: float) -> bool:
            nonlocal urgent
            urgent = pause(seconds) or urgent
            return urgent

        live = [child for child in self.children.values() if child.process is not None]
        live.sort(key=lambda child: child.part.stop_order)
        for order, group in groupby(live, key=lambda child: child.part.stop_order):
            parts = {child.process: child.part for child in group if child.process is not None}
            timeouts = [(process, part.stop_timeout) for process, part in parts.items()]
            wait = _without_hurry(pause) if order == programs.SERVER else pause_or_hurry
            for process in programs.stop_processes(timeouts, wait):
                killed.append(parts[process].name)
                self.on_exit(parts[process], process.pid, False)
        self.children.clear()
        return killed

    def _start(self, child: Child) -> None:
        child.started_at = time.time()
        try:
            child.process = child.part.start()
        except (GridError, OSError) as exc:
            self._handle_exit(child, f"could not be started: {exc}")

    def _handle_exit(self, child: Child, how: str) -> None:
        """Schedule the restart of a part that ended by itself, or give it up."""
        if child.process is not None:
            self.on_exit(child.part, child.process.pid, True)
            child.process = None
        now = self.clock()
        child.exit_times.append(now)
        while child.exit_times[0] < now - EXIT_WINDOW_SECONDS:
            child.exit_times.popleft()
        name, line = child.part.name, child.part.last_log_line()
        if len(child.exit_times) >= MAX_EXITS:
            often = f"it ended {MAX_EXITS} times within {EXIT_WINDOW_SECONDS:g} s"
            child.gave_up_reason = f"{often}; the last time it {how}: {line}"
            self.report(f"{name} is not restarted: {child.gave_up_reason}")
            return
        delay = FIRST_DELAY_SECONDS * 2 ** (len(child.exit_times) - 1)
        child.restart_at = now + delay
        self.report(f"{name} {how}: {line}; restarting in {delay:g} s")

    def _terminate(self, child: Child) -> None:
        assert child.process is not None
        child.process.terminate()
        child.kill_at = self.clock() + child.part.stop_timeout


def _without_hurry(pause: Callable[[float], bool]) -> Callable[[float], bool]:
    """Return a function that waits as `pause` does, and never reports a hurry."""

    def wait(seconds: float) -> bool:
        pause(seconds)
        return False

    return wait


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
