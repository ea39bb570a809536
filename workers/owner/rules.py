"""Lending rules: what keeps a seat from the grid now. Its owner's switch, its hours, the use of the
machine.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path

from gridq.config.home import is_locked
from gridq.process.periodic import PeriodicThread
from gridq.protocol.seat_states import PAUSED, Unavailable
from workers.owner import switch
from workers.owner.activity import find_owner_process, select_source
from workers.owner.activity_source import ActivitySource
from workers.owner.hours import Hours
from workers.owner.lend import Lend

SAMPLE_SECONDS = 5.0
"""Seconds between two samples of the machine's use."""


class Rule(ABC):
    """A reason to pause a seat. Call it with a time (seconds since 1970): None lends the seat."""

    @abstractmethod
    def __call__(self, now: float) -> Unavailable | None: ...

    def start(self) -> None:  # noqa: B027 most rules sample nothing
        """Start sampling, where the rule samples something."""

    def stop(self) -> None:  # noqa: B027
        """Stop sampling."""


class Switch(Rule):
    """Pauses the seat while its owner has paused it."""

    def __init__(self, home: Path, seat: str) -> None:
        self._home = home
        self._seat = seat

    def __call__(self, now: float) -> Unavailable | None:
        return switch.read_pause(self._home, self._seat, now)


class InHours(Rule):
    """Pauses the seat outside its hours."""

    def __init__(self, hours: Hours, text: str) -> None:
        self._hours = hours
        self._reason = f"outside its hours: {text}"
        self._from, self._to = 0.0, 0.0  # `_pause` is valid from, to
        self._pause: Unavailable | None = None

    def __call__(self, now: float) -> Unavailable | None:
        if not self._from <= now < self._to:
            lent, until = self._hours.evaluate(now)
            self._from, self._to = now, until if until is not None else now + 3600
            if lent:
                self._pause = None
            elif self._pause is None or self._pause.until != until:
                self._pause = Unavailable(PAUSED, self._reason, now, until)
        return self._pause


class WhenIdle(Rule):
    """Pauses the seat while somebody uses the machine or its owner uses the seat's program, and for `seconds`
    after that; also where the machine does not report its use.

    `sample` reads the use, which may take seconds; calling the rule returns the last result. `grid_pids`
    returns the grid's own processes: what they start is not the owner's.
    """

    def __init__(
        self,
        source: ActivitySource,
        seconds: float,
        program: str = "",
        grid_pids: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._source = source
        self._seconds = seconds
        self._program = program
        self._grid_pids = grid_pids
        self._program_used_at = 0.0  # monotonic; 0: never
        self._pause: Unavailable | None = None
        self._repeat = PeriodicThread("idle", SAMPLE_SECONDS, self.sample)

    def start(self) -> None:
        self.sample()
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def __call__(self, now: float) -> Unavailable | None:
        return self._pause

    def sample(self) -> None:
        """Read whether somebody uses the machine or the program."""
        reason = self._find_use()
        if not reason:
            self._pause = None
        elif self._pause is None or self._pause.reason != reason:
            self._pause = Unavailable(PAUSED, reason)

    def _find_use(self) -> str:
        """Return why the seat is paused; empty: it is lent."""
        idle = self._source.read_idle_time()
        after = f"lent after {_format_span(self._seconds)} without use"
        if idle.seconds is None:
            return f"only_when_idle needs the machine's idle time, and {idle.reason}"
        if idle.seconds < self._seconds:
            return f"the machine is in use: {after}"
        if not self._program:
            return ""
        running = self._source.list_processes()
        if running is None:
            return (
                f"only_when_idle needs the list of processes, to see {self._program}; it cannot be read here"
            )
        if find_owner_process(self._program, running, self._grid_pids()) is not None:
            self._program_used_at = time.monotonic()
        elif not self._program_used_at or time.monotonic() - self._program_used_at >= self._seconds:
            return ""
        return f"its owner uses {self._program}: {after}"


def find_workers(home: Path) -> list[int]:
    """Return the ids of the processes that serve seats from this home."""
    found = []
    for lock in (home / "seats").glob("*.lock"):
        if is_locked(lock.parent, lock.stem):
            text = lock.read_text("utf-8", "replace").strip()
            found += [int(text)] if text.isdecimal() else []
    return found


def make_rules(
    home: Path, seat: str, lend: Lend, program: str = "", source: ActivitySource | None = None
) -> list[Rule]:
    """Return the rules of one seat: its owner's switch first, then those of its `lend` table.

    `program`: the program that the seat runs, such as `claude`; empty: none.
    """
    rules: list[Rule] = [Switch(home, seat)]
    hours = lend.parse_hours()
    if hours is not None:
        rules.append(InHours(hours, lend.hours or ""))
    if lend.only_when_idle is not None:
        source = source or select_source()
        rules.append(WhenIdle(source, lend.only_when_idle, program, lambda: find_workers(home)))
    return rules


def _format_span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"
