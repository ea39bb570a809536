"""Time zones by name, on machines that may lack them: a slim container has no time zone files."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gridq.errors import ConfigError

INSTALL = "install time zones: the system's tzdata, or pip install tzdata"


def find_zone(name: str) -> tzinfo | None:
    """Return the zone `name`, such as Europe/Berlin, or None if this machine does not have it.

    UTC always exists.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def require_zone(name: str) -> tzinfo:
    """Return the zone `name`; raise ConfigError if this machine does not have it."""
    found = find_zone(name)
    if found is None:
        raise ConfigError(
            f"This machine does not have the time zone {name!r} of the grid's calendar windows",
            {"path": "GRIDQ_TIMEZONE", "fix": INSTALL},
        )
    return found


def check_zone(name: str) -> str:
    """Return `name`; raise ValueError if this machine does not have that zone."""
    if find_zone(name) is None:
        raise ValueError(
            f"this machine has no time zone {name!r}; use one such as Europe/Berlin, or {INSTALL}"
        )
    return name
