"""Estimate tokens from text, by a rule of thumb."""

from __future__ import annotations

from gridq.protocol.models import Json

CHARACTERS_PER_TOKEN = 4
"""For estimates only. OpenAI and Anthropic both state it for English text."""

MAX_IMAGE_CHARACTERS = 1600 * CHARACTERS_PER_TOKEN
"""An image counts as no more than this. Anthropic states 1,600 tokens for the largest."""


def estimate_tokens(value: Json) -> int:
    """Estimate the tokens of all strings in `value`."""
    return count_characters(value) // CHARACTERS_PER_TOKEN + 1


def count_characters(value: Json) -> int:
    """Count the characters of all strings in `value`. A data URL counts as one image at most."""
    if isinstance(value, str):
        return len(value) if not value.startswith("data:") else min(len(value), MAX_IMAGE_CHARACTERS)
    if isinstance(value, dict):
        return sum(count_characters(item) for item in value.values())
    if isinstance(value, list):
        return sum(count_characters(item) for item in value)
    return 0
