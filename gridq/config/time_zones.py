"""Time zones by their names, also where a machine does not have them: a slim container has no such files, and
an old one not the newest.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gridq.errors import ConfigError

INSTALL = "install time zones: the system's tzdata, or pip install tzdata"


def find_zone(name: str) -> tzinfo | None:
    """The zone of a name such as Europe/Berlin; None where this machine has none of that name. UTC it has
    always.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def require_zone(name: str) -> tzinfo:
    """The same, where times cannot be told without it. ConfigError."""
    found = find_zone(name)
    if found is None:
        raise ConfigError(
            f"This machine does not have the time zone {name!r}, in which the grid's windows turn",
            {"path": "GRIDQ_TIMEZONE", "fix": INSTALL},
        )
    return found


def check_zone(name: str) -> str:
    """The same name. ValueError: this machine has no zone so called."""
    if find_zone(name) is None:
        raise ValueError(
            f"{name!r} is no time zone such as Europe/Berlin that this machine has; if it is one, {INSTALL}"
        )
    return name
