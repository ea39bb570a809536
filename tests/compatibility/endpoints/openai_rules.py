"""The rules that OpenAI's chats and Responses share: calls and results, names, schemas."""

from __future__ import annotations

import re
from typing import Any

from tests.compatibility.endpoints.model import Turn
from tests.compatibility.endpoints.server import Refusal

THINKER = "gpt-5"
"""A model that thinks, and takes no sampling parameters."""

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_name(name: str, place: str) -> None:
    """Refuse a tool's name that the API does not take."""
    if not NAME.fullmatch(name):
        raise Refusal(f"Invalid '{place}': string does not match pattern", place, code="invalid_value")


def check_calls(turns: list[Turn]) -> None:
    """Refuse tool calls without results right after them, and results without calls."""
    open_ids: list[str] = []
    for at, turn in enumerate(turns):
        if turn.role == "tool":
            for result in turn.results:
                if result.id not in open_ids:
                    raise Refusal("a tool message must follow its 'tool_calls'", f"messages[{at}].role")
                open_ids.remove(result.id)
            continue
        if open_ids:
            raise Refusal(f"'tool_calls' without tool messages: {open_ids}", f"messages[{at}].role")
        open_ids = [call.id for call in turn.calls]
        if len(set(open_ids)) < len(open_ids):
            raise Refusal("Duplicate tool call ids", f"messages[{at}].tool_calls")
    if open_ids:
        raise Refusal(f"'tool_calls' without tool messages: {open_ids}", f"messages[{len(turns)}].role")


def check_strict_schema(schema: Any, place: str) -> None:
    """Refuse what OpenAI's strict mode refuses: open objects, and properties that are not required."""
    if isinstance(schema, list):
        for each in schema:
            check_strict_schema(each, place)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(
            properties
        ):
            raise Refusal("Invalid schema: 'additionalProperties' must be false, all required", place)
    for name in ("oneOf", "allOf", "not", "patternProperties", "if"):
        if name in schema:
            raise Refusal(f"Invalid schema: '{name}' is not permitted", place)
    for name in ("anyOf", "items"):
        check_strict_schema(schema.get(name), place)
    for name in ("properties", "$defs"):
        check_strict_schema(list((schema.get(name) or {}).values()), place)
