"""The owner's switch: pause seats of this machine, and lend them again.

A file in GRIDQ_HOME holds the state of one seat, another that of all seats. No server and no key is needed:
whoever may write in the home folder is the owner. A seat's own file takes precedence over that for all seats.
Pausing or resuming all seats removes the files of single seats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from gridq.config.home import make_folder_error, write_private
from gridq.errors import ConfigError
from gridq.protocol.seat_states import PAUSED, Unavailable

FOLDER = "pauses"
ALL_SEATS = "_all"
"""The name of the file for all seats, which no seat can have."""

MAX_PAUSE_SECONDS = 366 * 86_400.0
"""The longest pause that ends by itself."""

MAX_TIME_SECONDS = 253_000_000_000.0
"""The latest time that is accepted, in seconds since 1970: before the year 10,000."""

PAUSED_BY_OWNER = "its owner paused it"


@dataclass(frozen=True, slots=True)
class SwitchState:
    """The state of a switch. `paused` False lends the seat although all seats are paused. Times are seconds
    since 1970; `until` None: until the owner changes it.
    """

    paused: bool
    since: float
    until: float | None = None
    reason: str = ""

    def applies_at(self, now: float) -> bool:
        """Return whether the state has not ended by itself."""
        return self.until is None or now < self.until

    def to_unavailable(self) -> Unavailable:
        """Return why the seat takes no work while it is paused."""
        reason = f"{PAUSED_BY_OWNER}: {self.reason}" if self.reason else PAUSED_BY_OWNER
        return Unavailable(PAUSED, reason, self.since, self.until)


def pause(home: Path, seat: str | None, *, until: float | None = None, reason: str = "") -> None:
    """Pause a seat; None: all seats. ConfigError: the home folder cannot be written."""
    with _open_folder(home) as folder:
        _write(folder, seat or ALL_SEATS, SwitchState(True, time.time(), until, reason))
        if seat is None:
            _remove_single_seats(folder)


def resume(home: Path, seat: str | None) -> None:
    """Lend a seat again; None: all seats. ConfigError: the home folder cannot be written."""
    with _open_folder(home) as folder:
        if seat is None:
            (folder / f"{ALL_SEATS}.json").unlink(missing_ok=True)
            _remove_single_seats(folder)
        elif _read(folder / f"{ALL_SEATS}.json") is not None:
            _write(folder, seat, SwitchState(False, time.time()))
        else:
            (folder / f"{seat}.json").unlink(missing_ok=True)


def read_pause(home: Path, seat: str, now: float) -> Unavailable | None:
    """Return the pause of a seat at the time `now`; None: its owner has not paused it."""
    for name in seat, ALL_SEATS:
        state = _read(home / FOLDER / f"{name}.json")
        if state is not None and state.applies_at(now):
            return state.to_unavailable() if state.paused else None
    return None


def parse_until(text: str, now: float) -> float:
    """Parse `18:00` (the next one) or `2026-12-01 18:00`, by this machine's clock, as seconds since 1970.

    ConfigError: it is not a time, it has passed, or it is more than MAX_PAUSE_SECONDS ahead.
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
    with suppress(ValueError, OverflowError, OSError):  # years that this machine's clock cannot show
        until = None if at is None else at.timestamp()
    if until is None or not now < until <= now + MAX_PAUSE_SECONDS:
        too_far = until is not None and until > now
        raise ConfigError(
            f"{text!r} is too far ahead" if too_far else f"{text!r} is not a time in the future",
            {
                "path": "--until",
                "expected": "a time such as 18:00 or 2026-12-01 18:00, within 366 days",
            },
        )
    return until


@contextmanager
def _open_folder(home: Path) -> Iterator[Path]:
    folder = home / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder
    except OSError as exc:
        raise make_folder_error(folder, exc) from None


def _write(folder: Path, name: str, state: SwitchState) -> None:
    write_private(folder / f"{name}.json", json.dumps(asdict(state)) + "\n")


def _remove_single_seats(folder: Path) -> None:
    for path in folder.glob("*.json"):
        if path.stem != ALL_SEATS and not path.name.startswith("."):
            path.unlink(missing_ok=True)


def _read(path: Path) -> SwitchState | None:
    """Read a switch's file; None: there is none. A file that cannot be read pauses the seat: the owner may
    have paused it.
    """
    try:
        found = json.loads(path.read_bytes())
        until = found["until"]
        if not isinstance(found["paused"], bool):
            raise TypeError("paused is neither true nor false")
        return SwitchState(
            found["paused"],
            _parse_time(found["since"]),
            None if until is None else _parse_time(until),
            str(found["reason"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        return SwitchState(True, 0.0, None, f"{path.name} cannot be read ({type(exc).__name__})")


def _parse_time(value: object) -> float:
    """Return `value` as seconds since 1970. ValueError, TypeError, OverflowError: it is not such a time."""
    seconds = float(value)  # type: ignore[arg-type]
    if not 0 <= seconds < MAX_TIME_SECONDS:
        raise ValueError("out of range")
    return seconds
