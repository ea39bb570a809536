"""Find the part of a Responses request that only an endpoint with Responses can serve.

The gateway demands such a seat for it. At other seats, the worker refuses the same parts by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from gridq.protocol.models import Json

OWN_TOOLS = frozenset({"function", "custom"})
"""The types of tools that the client runs itself. All others run at the vendor's."""

OWN_CALLS = frozenset({"function_call", "custom_tool_call"})
OWN_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
"""The types of items in which such a tool is called, and in which its output is."""

KNOWN_ITEMS = frozenset(
    {
        *("message", "reasoning", *OWN_CALLS, *OWN_OUTPUTS),
        "item_reference",  # refused at every seat
    }
)
TRANSLATED_CHOICES = frozenset({"function", "custom", "allowed_tools"})
VENDOR_FIELDS = ("prompt", "context_management", "moderation", "access_programs")


def find_vendor_part(body: Mapping[str, Json]) -> str:
    """Return the place of the first part of `body` that needs the vendor's Responses, "" if none does.

    Parts of an unexpected shape count as none: the worker refuses them wherever they go.
    """
    for field in VENDOR_FIELDS:
        if body.get(field):
            return field
    for at, tool in enumerate(_as_objects(body.get("tools"))):
        if tool.get("type") == "namespace":
            for inner_at, inner in enumerate(_as_objects(tool.get("tools"))):
                if _is_other(inner.get("type"), OWN_TOOLS):
                    return f"tools[{at}].tools[{inner_at}].type"
        elif _is_other(tool.get("type"), OWN_TOOLS):
            return f"tools[{at}].type"
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and _is_other(choice.get("type"), TRANSLATED_CHOICES):
        return "tool_choice"
    for at, item in enumerate(_as_objects(body.get("input"))):
        if _is_other(item.get("type"), KNOWN_ITEMS):
            return f"input[{at}].type"
        for name in ("content", "output"):
            for part_at, part in enumerate(_as_objects(item.get(name))):
                for field in ("file_id", "file_url"):
                    if part.get(field) is not None:
                        return f"input[{at}].{name}[{part_at}].{field}"
    return ""


def _is_other(kind: Json, known: frozenset[str]) -> bool:
    return isinstance(kind, str) and kind not in known


def _as_objects(value: Json) -> list[dict[str, Json]]:
    return [each if isinstance(each, dict) else {} for each in value] if isinstance(value, list) else []
