"""When the terms of the seats file keep a seat: outside of its hours, while its owner is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from gridq.config.home import held
from gridq.execution.circuit_breaker import PAUSED, Rest
from gridq.process.periodic import Repeat
from workers.owner import switch
from workers.owner.hours import Hours
from workers.owner.idle import Machine, here, own_use
from workers.owner.lend import Lend

SAMPLE = 5.0
"""Seconds between two looks at the machine's use."""


class Rule:
    """Why a seat is kept at a time (seconds since 1970); None where this lets it be lent."""

    def __call__(self, now: float) -> Rest | None:
        raise NotImplementedError

    def start(self) -> None:
        """Begin to look, where that takes more than a moment."""

    def stop(self) -> None:
        """Look no more."""


class Switch(Rule):
    """Keeps the seat while its owner's switch says so."""

    def __init__(self, home: Path, seat: str) -> None:
        self._home = home
        self._seat = seat

    def __call__(self, now: float) -> Rest | None:
        return switch.said(self._home, self._seat, now)


class InHours(Rule):
    """Keeps the seat outside of its hours."""

    def __init__(self, hours: Hours, text: str) -> None:
        self._hours = hours
        self._reason = f"it is lent only at {text}"
        self._lent = True
        self._from, self._to = 0.0, 0.0  # for these times the answer is known
        self._rest: Rest | None = None

    def __call__(self, now: float) -> Rest | None:
        if not self._from <= now < self._to:
            lent, until = self._hours.at(now)
            self._from, self._to = now, until if until is not None else now + 3600
            if lent:
                self._rest = None
            elif self._rest is None or self._rest.until != until:
                self._rest = Rest(PAUSED, self._reason, now, until)
        return self._rest


class WhenIdle(Rule):
    """Keeps the seat while somebody uses the machine, its owner the seat's program, or nobody can tell.

    `sample` looks, which may take seconds; the rule tells what it saw last. `ours`: the processes whose
    children are the grid's own.
    """

    def __init__(
        self, machine: Machine, seconds: float, program: str = "", ours: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._machine = machine
        self._seconds = seconds
        self._program = program
        self._ours = ours
        self._used_at = 0.0  # the program, last
        self._rest: Rest | None = None
        self._repeat = Repeat("idle", SAMPLE, self.sample)

    def start(self) -> None:
        """Look now and again."""
        self.sample()
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def __call__(self, now: float) -> Rest | None:
        return self._rest

    def sample(self) -> None:
        """Look whether somebody uses the machine or the program."""
        reason = self._in_use()
        if not reason:
            self._rest = None
        elif self._rest is None or self._rest.reason != reason:
            self._rest = Rest(PAUSED, reason)

    def _in_use(self) -> str:
        told = self._machine.idle()
        lent = f"it is lent once that was not so for {_span(self._seconds)}"
        if told.seconds is None:
            return f"it is lent only when nobody uses the machine, which cannot be told here: {told.why}"
        if told.seconds < self._seconds:
            return f"somebody uses the machine: {lent}"
        if not self._program:
            return ""
        running = self._machine.processes()
        if running is None:
            return f"it is lent only when its owner does not use {self._program}, which cannot be told here"
        if own_use(self._program, running, self._ours()) is not None:
            self._used_at = time.monotonic()
        elif not self._used_at or time.monotonic() - self._used_at >= self._seconds:
            return ""
        return f"its owner uses {self._program}: {lent}"


def workers_of(home: Path) -> list[int]:
    """The processes that serve seats from this home: what they start is the grid's."""
    found = []
    for lock in (home / "seats").glob("*.lock"):
        if held(lock.parent, lock.stem):
            text = lock.read_text("utf-8", "replace").strip()
            found += [int(text)] if text.isdecimal() else []
    return found


def rules_of(
    home: Path, seat: str, lend: Lend, program: str = "", machine: Machine | None = None
) -> list[Rule]:
    """The rules of one seat: its owner's switch, and those that its terms come to. `program`: which program
    serves it, where one does.
    """
    rules: list[Rule] = [Switch(home, seat)]
    hours = lend.when()
    if hours is not None:
        rules.append(InHours(hours, lend.hours or ""))
    if lend.only_when_idle is not None:
        rules.append(WhenIdle(machine or here(), lend.only_when_idle, program, lambda: workers_of(home)))
    return rules


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"
