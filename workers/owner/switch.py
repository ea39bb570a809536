"""The owner's switch: a word in a file of GRIDQ_HOME for each seat, and one for all of them.

It needs no server and no key: who may write in the home folder is the owner. A seat's own word goes before
the one for all, which takes the place of every word said before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from gridq.config.home import unusable, write_private
from gridq.errors import ConfigError
from gridq.execution.circuit_breaker import PAUSED, Rest

FOLDER = "kept"
EVERY = "_all"
"""The name of the word for all seats, which no seat can have."""

LONGEST = 366 * 86_400.0
"""Seconds that a pause may last which ends by itself."""

LAST = 253_000_000_000.0
"""Seconds since 1970 that no clock here shows: before the year 10,000."""

BY_OWNER = "its owner paused it"


@dataclass(frozen=True, slots=True)
class Word:
    """What the owner said: `paused` False lends the seat though all are paused. Times in seconds since 1970;
    `until` None: until it is taken back.
    """

    paused: bool
    since: float
    until: float | None = None
    reason: str = ""

    def holds(self, now: float) -> bool:
        """Whether it still counts."""
        return self.until is None or now < self.until

    def rest(self) -> Rest:
        """The rest that it is to the seat."""
        reason = f"{BY_OWNER}: {self.reason}" if self.reason else BY_OWNER
        return Rest(PAUSED, reason, self.since, self.until)


def pause(home: Path, seat: str | None, *, until: float | None = None, reason: str = "") -> None:
    """Keep a seat, or all seats where it is None. ConfigError: the home folder cannot be written."""
    with _folder(home) as folder:
        _write(folder, seat or EVERY, Word(True, time.time(), until, reason))
        if seat is None:
            _forget(folder)


def resume(home: Path, seat: str | None) -> None:
    """Lend a seat, or all seats, again. ConfigError: the home folder cannot be written."""
    with _folder(home) as folder:
        if seat is None:
            (folder / f"{EVERY}.json").unlink(missing_ok=True)
            _forget(folder)
        elif _read(folder / f"{EVERY}.json") is not None:
            _write(folder, seat, Word(False, time.time()))
        else:
            (folder / f"{seat}.json").unlink(missing_ok=True)


def said(home: Path, seat: str, now: float) -> Rest | None:
    """Why the owner keeps the seat by this switch; None where it is lent."""
    for name in seat, EVERY:
        word = _read(home / FOLDER / f"{name}.json")
        if word is not None and word.holds(now):
            return word.rest() if word.paused else None
    return None


def until_of(text: str, now: float) -> float:
    """When `18:00` is next, or a day and time such as `2026-12-01 18:00`, by this machine's clock.

    ConfigError: it is neither, it is over, or more than LONGEST ahead.
    """
    here = datetime.fromtimestamp(now)
    at: datetime | None = None
    with suppress(ValueError):
        at = datetime.fromisoformat(text.strip())
    with suppress(ValueError):
        clock = datetime.strptime(text.strip(), "%H:%M")
        at = here.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
        at = at if at > here else at + timedelta(days=1)
    until = None
    with suppress(ValueError, OverflowError, OSError):  # of years that no clock here can show
        until = None if at is None else at.timestamp()
    if until is None or not now < until <= now + LONGEST:
        raise ConfigError(
            f"{text!r} is no time to come" if until is None or until <= now else f"{text!r} is too far ahead",
            {
                "path": "--until",
                "expected": "a time of day such as 18:00, or 2026-12-01 18:00, within 366 days",
            },
        )
    return until


@contextmanager
def _folder(home: Path) -> Iterator[Path]:
    folder = home / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder
    except OSError as exc:
        raise unusable(folder, exc) from None


def _write(folder: Path, name: str, word: Word) -> None:
    write_private(folder / f"{name}.json", json.dumps(asdict(word)) + "\n")


def _forget(folder: Path) -> None:
    """Drop the words for single seats."""
    for path in folder.glob("*.json"):
        if path.stem != EVERY and not path.name.startswith("."):
            path.unlink(missing_ok=True)


def _read(path: Path) -> Word | None:
    """The word in a file; a file that cannot be read keeps the seat: nobody is lent what its owner may have
    kept.
    """
    try:
        found = json.loads(path.read_bytes())
        until = found["until"]
        if not isinstance(found["paused"], bool):
            raise TypeError("paused is neither true nor false")
        return Word(
            found["paused"],
            _instant(found["since"]),
            None if until is None else _instant(until),
            str(found["reason"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        return Word(True, 0.0, None, f"{path.name} cannot be read ({type(exc).__name__})")


def _instant(told: object) -> float:
    """Seconds since 1970 that a clock can show. ValueError, TypeError, OverflowError: it is none."""
    seconds = float(told)  # type: ignore[arg-type]
    if not 0 <= seconds < LAST:
        raise ValueError("no time")
    return seconds
