"""A time zone in which a day begins when it is wanted, so that a run of minutes sees it turn."""

from __future__ import annotations

import os
import struct
import zoneinfo
from datetime import UTC, datetime, timedelta
from pathlib import Path

NAME = "Chaos"
_DAY = 86_400


def offset(midnight: float) -> int:
    """Seconds east of UTC where a day begins `midnight` seconds after 1970, but no month: what seats are
    charged is counted by the month.
    """
    west = int(midnight) % _DAY
    day = datetime.fromtimestamp(midnight, UTC) + timedelta(seconds=-west)
    return -west if west == 0 or day.day != 1 else _DAY - west


def install(folder: Path, midnight: float) -> dict[str, str]:
    """Write the zone into `folder`; the environment of programs in which it is that of the grid."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(_file(offset(midnight)))
    path = os.pathsep.join([str(folder), *zoneinfo.TZPATH])
    return {"GRIDQ_TIMEZONE": NAME, "PYTHONTZPATH": path}


def _file(seconds: int) -> bytes:
    """A zone of one offset, as RFC 8536 has it: the header, one type of time, its name."""
    name = b"GRID\0"
    head = struct.pack(">4sc15x6l", b"TZif", b"\0", 0, 0, 0, 0, 1, len(name))
    return head + struct.pack(">lbb", seconds, 0, 0) + name
