"""Stages of our own, which the seat `local` runs."""

from __future__ import annotations

from gridq import stage


@stage(effects=["Pure"], input="Text", output="Text")
def shout(value: str) -> str:
    """Return the text in upper case."""
    return value.upper()
