"""Thinking at a seat of the Anthropic API format: how much, in the history of a request, and in its answers.

Only the vendor's signature makes earlier thinking usable. A chat has it in `reasoning_details` of a message,
in OpenRouter's form: send your history back unchanged, and the model gets its thinking.

How much a model thinks is set by an effort, and by the kinds of thinking that it takes. A model's entry in
the endpoint's list states both (`capabilities`). Where it does not, the name decides, by the vendor's pages
"Effort" and "Thinking": adaptive thinking from 4.6 on, a budget before, and no way to switch it off for
Fable, Mythos and, from 5.5 on, Opus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gridq.protocol.models import Json
from workers.model_apis.anthropic.claude_models import parse_model
from workers.model_apis.reasoning_marks import is_signed

FORMAT = "anthropic-claude-v1"
THINKING = frozenset({"thinking", "redacted_thinking"})
EFFORTS = ("low", "medium", "high", "xhigh", "max")
ADAPTIVE: dict[str, Json] = {"type": "adaptive", "display": "summarized"}
"""Newer models leave the text of their thinking out if nobody asks for it."""

MIN_BUDGET = 1024
BUDGETS = {"low": MIN_BUDGET, "medium": 8192, "high": 24_576, "xhigh": 32_000, "max": 32_000}
"""Tokens of thinking by effort, for models that take a budget. More than 32,000 adds little."""

ALWAYS_ADAPTIVE = re.compile("fable|mythos")


def make_effort_fields(
    effort: str, model: str, max_tokens: int, capabilities: Json = None
) -> dict[str, dict[str, Json]]:
    """Return the fields `thinking` and `output_config` with which `model` thinks as much as `effort` says.

    `effort` is one of OpenAI's (`none` and `minimal` too) or of EFFORTS; any other counts as high.
    `capabilities` are those of the model's entry, if the endpoint states them. Thinking is part of
    `max_tokens`: where less than twice the smallest budget is left, the model does not think.
    """
    kinds, levels = _find_kinds(model, capabilities), _find_levels(model, capabilities)
    if effort == "none":
        off = next((kind for kind in ("disabled", "between_tools") if kind in kinds), "")
        return {"thinking": {"type": off}} if off else _make_level("low", levels)
    effort = "low" if effort == "minimal" else effort if effort in EFFORTS else "high"
    if "adaptive" in kinds:
        return {"thinking": ADAPTIVE, **_make_level(effort, levels)}
    budget = min(BUDGETS[effort], max_tokens // 2)
    if "enabled" not in kinds or budget < MIN_BUDGET:
        return _make_level(effort, levels)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def add_effort(request: dict[str, Json], effort: str, capabilities: Json = None) -> dict[str, Json]:
    """Return a complete Messages request whose model thinks as much as `effort` says.

    What the request says of thinking itself has precedence. A forced tool call, a temperature and `top_k`,
    with which the vendor accepts no thinking, have precedence over thinking, but not over the effort.
    """
    fields = make_effort_fields(effort, request["model"], request["max_tokens"], capabilities)
    is_forced = (request.get("tool_choice") or {}).get("type") in ("any", "tool")
    is_sampled = request.get("temperature", 1) != 1 or request.get("top_k") is not None
    thinks = (fields.get("thinking") or {}).get("type") in ("adaptive", "enabled")
    if "thinking" in request or (thinks and (is_forced or is_sampled)):
        fields.pop("thinking", None)
    stated = request.get("output_config") or {}
    if "output_config" in fields:
        fields["output_config"] = {**fields["output_config"], **stated}
    return {**request, **fields}


def _find_kinds(model: str, capabilities: Json) -> set[str]:
    """Return the types of `thinking` that `model` takes."""
    stated = _get(capabilities, "thinking", "types")
    if stated:
        return {kind for kind in stated if _get(stated, kind).get("supported")}
    family, version = parse_model(model) or ("", (0, 0))
    if ALWAYS_ADAPTIVE.search(model) or (family == "opus" and version >= (5, 5)):
        return {"adaptive"}
    if version >= (5, 5) and family == "sonnet":
        return {"adaptive", "between_tools"}
    if version >= (4, 6):
        return {"adaptive", "disabled"}
    return {"disabled"} if (0, 0) < version < (3, 7) else {"enabled", "disabled"}


def _find_levels(model: str, capabilities: Json) -> tuple[str, ...]:
    """Return the efforts that `model` takes, none if it takes no effort."""
    stated = _get(capabilities, "effort")
    if stated:
        return tuple(level for level in EFFORTS if _get(stated, level).get("supported"))
    family, version = parse_model(model) or ("", (0, 0))
    if ALWAYS_ADAPTIVE.search(model) or version >= (4, 7):
        return EFFORTS
    if version == (4, 6):
        return ("low", "medium", "high", "max")
    return EFFORTS[:3] if (family, version) == ("opus", (4, 5)) else ()


def _make_level(effort: str, levels: tuple[str, ...]) -> dict[str, dict[str, Json]]:
    """Return the field with the highest of `levels` that is not above `effort`, none if there are none."""
    below = EFFORTS[: EFFORTS.index(effort) + 1]
    found = next((level for level in reversed(below) if level in levels), "")
    return {"output_config": {"effort": found}} if found else {}


def _get(value: Json, *names: str) -> Mapping[str, Json]:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def settle_thinking(request: dict[str, Json], *, is_translated: bool = False) -> dict[str, Json]:
    """Return a Messages request without thinking that no vendor signed, and without what depends on that.

    While tools are called, `thinking` with a budget requires that the turn begins with thinking. If that is
    gone, or a translated history never had it, the model goes on without thinking.
    """
    messages, dropped = [], is_translated
    for message in request["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            kept = [block for block in content if block.get("type") not in THINKING or is_signed(block)]
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
