"""Watches what the owner wants of one seat, in the worker that serves it, and says beside it how that stands.

`<home>/seats/<seat>.json` is that word: it counts only while the worker holds the lock of the same name.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gridq.config.home import held, write_private
from gridq.execution.attempt import Attempt
from gridq.execution.circuit_breaker import Rest
from gridq.execution.session import Session
from gridq.process.periodic import Repeat
from workers.owner import switch
from workers.owner.rules import Rule

log = logging.getLogger(__name__)

LOOK = 0.2
"""Seconds between two looks: what the owner says counts within one."""

AGAIN = 1.0
"""Seconds between two tries to tell the grid."""

LENT = "lent"


class Watch:
    """Lends one seat and withholds it, as its owner says by `rules`: the first that keeps it counts."""

    def __init__(self, home: Path, seat: str, session: Session, rules: Sequence[Rule]) -> None:
        self._home = home
        self._seat = seat
        self._session = session
        self._rules = rules
        self._heeded: Rest | None = None
        self._stopped: list[Attempt] = []
        self._untold = False  # the grid does not know yet
        self._again = 0.0  # when it is told again
        self._repeat = Repeat(f"owner of {seat}", LOOK, self.look)

    def begin(self) -> None:
        """Before the seat goes live: a seat that is kept begins so. It may take some seconds."""
        for rule in self._rules:
            rule.start()
        self._heeded = self._session.resting.own = self._wanted()
        self._note(self._heeded)

    def start(self) -> None:
        self._repeat.start()

    def stop(self) -> None:
        for rule in self._rules:
            rule.stop()
        self._repeat.stop()

    def look(self) -> None:
        """See what the owner wants, and do it. RedisError, SeatInUse: the grid could not be told; that is
        tried again, and meanwhile nothing runs here that is not to.
        """
        wanted = self._wanted()
        resting = self._session.resting
        if wanted != self._heeded:
            if wanted is not None:
                self._stopped = resting.withhold(wanted)
            else:
                resting.release()
            self._heeded = wanted
            self._untold, self._again = True, 0.0
            self._note(wanted)
        if self._untold and time.monotonic() >= self._again:
            self._again = time.monotonic() + AGAIN
            resting.tell(self._stopped)
            self._untold, self._stopped = False, []

    def _wanted(self) -> Rest | None:
        now = time.time()
        return next((rest for rule in self._rules if (rest := rule(now)) is not None), None)

    def _note(self, rest: Rest | None) -> None:
        said = {"state": LENT} if rest is None else asdict(rest)
        try:
            write_private(_path(self._home, self._seat), json.dumps(said) + "\n")
        except OSError as exc:  # a full disk is no reason to lend what is kept
            log.warning("how the seat %s is lent could not be written down: %s", self._seat, exc)


def known(home: Path) -> list[str]:
    """The seats that were ever served from this home."""
    return sorted(path.stem for path in (home / "seats").glob("*.lock"))


def seat_now(home: Path, seat: str) -> dict[str, Any]:
    """How a seat of this machine is lent: `served` by a worker or not, its `state` (`lent`, `paused`),
    `reason`, `since` and `until`; `obeys` False: its worker has yet to heed the switch.
    """
    word = switch.read_pause(home, seat, time.time())
    rest = {"state": LENT} if word is None else asdict(word)
    served = held(home / "seats", seat)
    if served:
        try:
            noted = json.loads(_path(home, seat).read_bytes())
        except (OSError, ValueError):  # it is about to begin
            noted = {}
        obeys = noted == rest if word is not None else not noted.get("reason", "").startswith(switch.PAUSED_BY_OWNER)
        if obeys:
            rest = noted
    else:
        obeys = True
    about = {"reason": "", "since": None, "until": None, **rest}
    return {"seat": seat, "served": served, "obeys": obeys, **about}


def _path(home: Path, seat: str) -> Path:
    return home / "seats" / f"{seat}.json"
