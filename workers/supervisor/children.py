"""Children that are kept running: what ends by itself is started again, after a pause that doubles; what ends
too often is given up, and the rest goes on.
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
"""Seconds until a part that ended is started again, the first time; then twice as long each time."""
MAX_EXITS = 5
"""How often a part may end by itself within WINDOW seconds before it is given up."""
EXIT_WINDOW_SECONDS = 60.0


class Part(Protocol):
    """What is supervised: `workers.supervisor.programs.Program`, or a server that starts itself."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> int:
        """Its place in the order of the end, lowest first."""

    @property
    def log(self) -> Path:
        """The file that its output goes to."""

    @property
    def stop_in(self) -> float:
        """Seconds after SIGTERM until it is killed."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start it. GridError, OSError: it could not be started."""

    def last_words(self) -> str:
        """What it said last, in one line."""


@dataclass(slots=True)
class Child:
    """One supervised part as it is now."""

    part: Part
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    again_at: float = 0.0
    given_up: str = ""
    stop_by: float | None = None
    successor: Part | None = None
    ends: deque[float] = field(default_factory=deque)

    @property
    def state(self) -> str:
        """running, restarting, stopping, or given up."""
        if self.given_up:
            return "given up"
        if self.stop_by is not None:
            return "stopping"
        return "running" if self.process is not None else "restarting"

    def describe(self) -> dict[str, Any]:
        """It as JSON; times in seconds since the epoch."""
        return {
            "name": self.part.name,
            "pid": self.process.pid if self.process else None,
            "state": self.state,
            "started_at": self.started_at if self.process else None,
            "restarts": self.restarts,
            "reason": self.given_up,
        }


class Supervisor:
    """Starts parts, looks after them, ends them. All from one thread, which must live as long as they do.

    `say` gets one line for each thing that somebody should know. `lost(part, pid, died)` is called when a
    part has ended by itself (died), before it is started again, or had to be killed; `clock` gives monotonic
    seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        lost: Callable[[Part, int, bool], None] = lambda part, pid, died: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.say = say
        self.lost = lost
        self.clock = clock
        self.children: dict[str, Child] = {}

    def add(self, part: Part) -> Child:
        """Start a part and look after it from now on."""
        child = self.children[part.name] = Child(part)
        self._start(child)
        return child

    def replace(self, part: Part) -> None:
        """Let `part` take the place of the one of its name, once that has ended; without one, add it."""
        child = self.children.get(part.name)
        if child is None or child.process is None:
            self.add(part)
            return
        child.successor = part
        if child.stop_by is None:
            self._terminate(child)

    def remove(self, name: str) -> None:
        """End the part `name` and forget it."""
        child = self.children[name]
        child.successor = None
        if child.process is None:
            del self.children[name]
        elif child.stop_by is None:
            self._terminate(child)

    def look(self) -> bool:
        """See who has ended and who is due. True where something has changed."""
        changed = False
        for name, child in list(self.children.items()):
            if child.process is not None and child.process.poll() is not None:
                changed = True
                if child.stop_by is not None:
                    del self.children[name]
                    if child.successor is not None:
                        self.add(child.successor)
                else:
                    self._ended(child, _how(child.process))
            elif child.process is not None and child.stop_by is not None and self.clock() > child.stop_by:
                programs.kill(child.process)
                self.lost(child.part, child.process.pid, False)
                self.say(f"{name} did not end within {child.part.stop_in:g} s and was killed")
                changed = True
            elif child.state == "restarting" and self.clock() >= child.again_at:
                child.restarts += 1
                self._start(child)
                changed = True
        return changed

    def next_look(self) -> float:
        """Seconds until something is due, at most one; the end of a child is told by SIGCHLD."""
        due = [child.again_at for child in self.children.values() if child.state == "restarting"]
        due += [child.stop_by for child in self.children.values() if child.stop_by is not None]
        return min([1.0, *(max(0.0, at - self.clock()) for at in due)])

    def stop(self, pause: Callable[[float], bool] = programs.patiently) -> list[str]:
        """End all parts, those of one place at once and one place after the other; who had to be killed.

        `pause(seconds)` waits; once it gives True, somebody is in a hurry: what is left is soon killed, but
        for the server, which keeps its time to write its data.
        """
        killed = []
        hurried: list[bool] = []

        def hurry(seconds: float) -> bool:
            if pause(seconds):
                hurried.append(True)
            return bool(hurried)

        live = [child for child in self.children.values() if child.process is not None]
        live.sort(key=lambda child: child.part.place)
        for place, group in groupby(live, key=lambda child: child.part.place):
            names = {child.process: child for child in group if child.process is not None}
            ends = [(process, child.part.stop_in) for process, child in names.items()]
            wait = _never(pause) if place == programs.SERVER else hurry
            for process in programs.end(ends, wait):
                killed.append(names[process].part.name)
                self.lost(names[process].part, process.pid, False)
        self.children.clear()
        return killed

    def _start(self, child: Child) -> None:
        child.started_at = time.time()
        try:
            child.process = child.part.start()
        except (GridError, OSError) as exc:
            self._ended(child, f"could not be started: {exc}")

    def _ended(self, child: Child, how: str) -> None:
        """A part has ended by itself: start it again after a while, or give it up."""
        if child.process is not None:
            self.lost(child.part, child.process.pid, True)
            child.process = None
        now = self.clock()
        child.ends.append(now)
        while child.ends[0] < now - EXIT_WINDOW_SECONDS:
            child.ends.popleft()
        name, words = child.part.name, child.part.last_words()
        if len(child.ends) >= MAX_EXITS:
            child.given_up = f"it ended {MAX_EXITS} times within {EXIT_WINDOW_SECONDS:g} s; at last it {how}: {words}"
            self.say(f"{name} is given up: {child.given_up}")
            return
        pause = FIRST_DELAY_SECONDS * 2 ** (len(child.ends) - 1)
        child.again_at = now + pause
        self.say(f"{name} {how}: {words}; it is started again in {pause:g} s")

    def _terminate(self, child: Child) -> None:
        assert child.process is not None
        child.process.terminate()
        child.stop_by = self.clock() + child.part.stop_in


def _never(pause: Callable[[float], bool]) -> Callable[[float], bool]:
    """Waits as `pause` does, and is never in a hurry."""

    def wait(seconds: float) -> bool:
        pause(seconds)
        return False

    return wait


def _how(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
