"""A time zone in which a day begins at a chosen moment, so that a run of minutes sees a change of day."""

from __future__ import annotations

import os
import struct
import zoneinfo
from datetime import UTC, datetime, timedelta
from pathlib import Path

NAME = "Chaos"
_DAY = 86_400


def offset(midnight: float) -> int:
    """Return the seconds east of UTC of a zone in which a day, but not a month, begins `midnight` seconds
    after 1970: charges of seats are summed by the month.
    """
    west = int(midnight) % _DAY
    day = datetime.fromtimestamp(midnight, UTC) + timedelta(seconds=-west)
    return -west if west == 0 or day.day != 1 else _DAY - west


def install(folder: Path, midnight: float) -> dict[str, str]:
    """Write the zone into `folder` and return the environment that makes it the grid's time zone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(_file(offset(midnight)))
    path = os.pathsep.join([str(folder), *zoneinfo.TZPATH])
    return {"GRIDQ_TIMEZONE": NAME, "PYTHONTZPATH": path}


def _file(seconds: int) -> bytes:
    """Return a zone file with one offset, as RFC 8536 defines it: the header, one type of time, its name."""
    name = b"GRID\0"
    head = struct.pack(">4sc15x6l", b"TZif", b"\0", 0, 0, 0, 0, 1, len(name))
    return head + struct.pack(">lbb", seconds, 0, 0) + name
