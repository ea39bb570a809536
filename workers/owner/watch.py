"""Apply the lending rules of one seat, in the worker that serves it, and note the result in the home folder.

The note is `<home>/seats/<seat>.json`. It is valid only while the worker holds the lock of the same name.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gridq.config.home import is_locked, write_private
from gridq.execution.attempt import Attempt
from gridq.execution.session import Session
from gridq.process.periodic import PeriodicThread
from gridq.protocol.seat_states import Unavailable
from workers.owner import switch
from workers.owner.rules import Rule

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.2
"""Seconds between two evaluations of the rules: what the owner says takes effect within one."""

RETRY_SECONDS = 1.0
"""Seconds between two attempts to tell the server."""

LENT = "lent"


class Watch:
    """Pauses and lends one seat by `rules`. The first rule that pauses it counts."""

    def __init__(self, home: Path, seat: str, session: Session, rules: Sequence[Rule]) -> None:
        self._home = home
        self._seat = seat
        self._session = session
        self._rules = rules
        self._applied: Unavailable | None = None
        self._stopped: list[Attempt] = []
        self._announce_due = False
        self._retry_at = 0.0  # monotonic
        self._repeat = PeriodicThread(f"owner of {seat}", CHECK_SECONDS, self.check)

    def prepare(self) -> None:
        """Apply the rules before the seat goes live, so that a paused seat starts paused. It may take
        seconds.
        """
        for rule in self._rules:
            rule.start()
        self._applied = self._session.paused = self._evaluate()
        self._write_note(self._applied)

    def start(self) -> None:
        self._repeat.start()

    def stop(self) -> None:
        for rule in self._rules:
            rule.stop()
        self._repeat.stop()

    def check(self) -> None:
        """Evaluate the rules and apply the result.

        RedisError, SeatInUse: the server could not be told. The next check tries again; until then a paused
        seat runs nothing.
        """
        wanted = self._evaluate()
        session = self._session
        if wanted != self._applied:
            if wanted is not None:
                self._stopped = session.pause(wanted)
            else:
                session.resume()
            self._applied = wanted
            self._announce_due, self._retry_at = True, 0.0
            self._write_note(wanted)
        if self._announce_due and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            session.announce_pause(self._stopped)
            self._announce_due, self._stopped = False, []

    def _evaluate(self) -> Unavailable | None:
        now = time.time()
        return next((pause for rule in self._rules if (pause := rule(now)) is not None), None)

    def _write_note(self, pause: Unavailable | None) -> None:
        note = {"state": LENT} if pause is None else asdict(pause)
        try:
            write_private(_note_path(self._home, self._seat), json.dumps(note) + "\n")
        except OSError as exc:  # a full disk is no reason to lend a paused seat
            log.warning("the state of the seat %s could not be written: %s", self._seat, exc)


def list_served_seats(home: Path) -> list[str]:
    """Return the names of the seats that were ever served from this home."""
    return sorted(path.stem for path in (home / "seats").glob("*.lock"))


def read_seat(home: Path, seat: str) -> dict[str, Any]:
    """Return how a seat of this machine is lent: `seat`, `served` (a worker serves it now), `state` (`lent`
    or `paused`), `reason`, `since`, `until`, and `applied`: whether its worker has applied the owner's
    switch.
    """
    pause = switch.read_pause(home, seat, time.time())
    state = {"state": LENT} if pause is None else asdict(pause)
    served = is_locked(home / "seats", seat)
    applied = True
    if served:
        try:
            note = json.loads(_note_path(home, seat).read_bytes())
        except (OSError, ValueError):  # the worker is starting
            note = {}
        if pause is not None:
            applied = note == state
        else:
            applied = not note.get("reason", "").startswith(switch.PAUSED_BY_OWNER)
        if applied:
            state = note
    defaults = {"reason": "", "since": None, "until": None}
    return {"seat": seat, "served": served, "applied": applied, **defaults, **state}


def _note_path(home: Path, seat: str) -> Path:
    return home / "seats" / f"{seat}.json"
