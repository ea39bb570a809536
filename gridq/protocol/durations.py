"""Durations as people and servers write them: `90`, `1.5s`, `30m`, `1h`, `2d`, `6m0s`, `88ms`."""

from __future__ import annotations

import re

UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?")
_PART = re.compile(r"(\d+(?:\.\d+)?) ?(ms|min|s|m|h|d)")


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration, None if `text` is not one. A number without a unit is in seconds."""
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not text or _PART.sub("", text).strip():
        return None
    return sum(float(amount) * UNIT_SECONDS[unit] for amount, unit in _PART.findall(text))


def format_seconds(seconds: float) -> str:
    """Return a time to wait as text: with up to three digits, but never as zero, less than that or a power.

    >>> format_seconds(0.25), format_seconds(86400.0), format_seconds(-3)
    ('0.25 s', '86400 s', 'less than 0.01 s')
    """
    if seconds < 0.01:
        return "less than 0.01 s"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
