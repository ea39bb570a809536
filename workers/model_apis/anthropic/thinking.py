"""Thinking in the history of a request for a seat of the Anthropic API format, and of its answers for chats.

Only the vendor's signature makes earlier thinking usable. A chat has it in `reasoning_details` of a message,
in OpenRouter's form: send your history back unchanged, and the model gets its thinking.
"""

from __future__ import annotations

from typing import Any

from gridq.protocol.models import Json
from workers.model_apis.reasoning_marks import is_signed

FORMAT = "anthropic-claude-v1"
THINKING = frozenset({"thinking", "redacted_thinking"})


def settle_thinking(request: dict[str, Json], *, is_translated: bool = False) -> dict[str, Json]:
    """Return a Messages request without thinking that no vendor signed, and without what depends on that.

    While tools are called, `thinking` with a budget requires that the turn begins with thinking. If that is
    gone, or a translated history never had it, the model goes on without thinking.
    """
    messages, dropped = [], is_translated
    for message in request["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            kept = [block for block in content if block.get("type") != "thinking" or is_signed(block)]
            dropped = dropped or len(kept) < len(content)
            if not kept and content:
                continue
            messages.append({**message, "content": kept})
        else:
            messages.append(message)
    settled = {**request, "messages": messages}
    thinking = request.get("thinking")
    if (
        dropped
        and isinstance(thinking, dict)
        and thinking.get("type") == "enabled"
        and _lacks_thinking(messages)
    ):
        del settled["thinking"]
        _drop_dependents(settled)
    return settled


def _has_block(message: dict[str, Json], kind: str) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(block.get("type") == kind for block in content)


def _lacks_thinking(messages: list[dict[str, Json]]) -> bool:
    """Return whether the last turn calls tools and does not begin with thinking."""
    start = None
    for message in reversed(messages):
        if message.get("role") == "assistant" and (start is not None or _has_block(message, "tool_use")):
            start = message
        elif message.get("role") == "assistant" or not _has_block(message, "tool_result"):
            break
    content = start.get("content") if start is not None else None
    begins = isinstance(content, list) and bool(content) and content[0].get("type") in THINKING
    return start is not None and not begins


def _drop_dependents(request: dict[str, Json]) -> None:
    management = request.get("context_management")
    if not isinstance(management, dict) or not isinstance(management.get("edits"), list):
        return
    edits = [edit for edit in management["edits"] if "thinking" not in str(edit.get("type"))]
    request["context_management"] = {**management, "edits": edits}
    if not edits:
        del request["context_management"]


def make_detail(block: dict[str, Json], index: int) -> dict[str, Json] | None:
    """Return the item of `reasoning_details` for a block, None if it is no thinking."""
    match block:
        case {"type": "thinking"}:
            detail = {"type": "reasoning.text", "text": block.get("thinking") or ""}
            signed = {"signature": block["signature"]} if block.get("signature") else {}
            return {**detail, **signed, "format": FORMAT, "index": index}
        case {"type": "redacted_thinking"}:
            return {
                "type": "reasoning.encrypted",
                "data": block.get("data"),
                "format": FORMAT,
                "index": index,
            }
    return None


def read_details(message: dict[str, Json]) -> list[dict[str, Json]]:
    """Return the thinking blocks in the `reasoning_details` of an assistant's message."""
    blocks: list[dict[str, Any]] = []
    details = message.get("reasoning_details")
    for detail in details if isinstance(details, list) else ():
        match detail:
            case {"type": "reasoning.text", "signature": str(signature), "format": str(form)} if (
                form == FORMAT
            ):
                text = detail.get("text") or ""
                blocks.append({"type": "thinking", "thinking": text, "signature": signature})
            case {"type": "reasoning.encrypted", "data": str(data), "format": str(form)} if form == FORMAT:
                blocks.append({"type": "redacted_thinking", "data": data})
    return blocks
