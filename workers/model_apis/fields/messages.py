"""The tables of Anthropic's Messages at seats of other formats. Source: `anthropic.types`, betas included."""

from __future__ import annotations

from collections.abc import Mapping

from gridq.protocol.models import Json
from workers.model_apis.api_request import MESSAGES
from workers.model_apis.fields.table import (
    Drop,
    FieldTable,
    Rule,
    add_inner_hints,
    hint,
    passed,
    refused,
    translated,
)

AT_OPENAI = "at a seat of another API format than Anthropic's"

MESSAGES_TO_CHAT = FieldTable(
    MESSAGES,
    "OpenAI-compatible, local",
    AT_OPENAI,
    {
        "model": passed(),
        "messages": translated("`messages`"),
        "system": translated("the first message"),
        "max_tokens": translated("`max_tokens`; 0 is refused"),
        "temperature": passed(),
        "top_p": passed(),
        "top_k": passed(),
        "stop_sequences": translated("`stop`"),
        "metadata": translated("`user`"),
        "tools": translated("`tools`; the vendor's own are refused"),
        "tool_choice": translated("`tool_choice`, `parallel_tool_calls`"),
        "output_config": translated("`format`: `response_format`; the rest are hints"),
        "output_format": translated("`response_format`"),
        "thinking": translated("whether the answer shows reasoning; the budget is a hint"),
        "stream": translated("set by the grid"),
        "container": refused(),
        "mcp_servers": refused(),
        "inference_geo": refused("global"),
        "compaction": refused(),
        "thread": refused(),
        "billing_policy": refused({"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"}),
        "cache_control": hint(),
        "context_management": hint({"edits": []}),
        "service_tier": hint("auto", "standard_only"),
        "speed": hint("standard"),
        "diagnostics": hint(),
        "fallbacks": hint(),
        "fallback_credit_token": hint(),
        "user_profile_id": hint(),
        "workspace_id": hint(),
        "betas": hint(about="the SDK sends it as a header"),
    },
)

MESSAGES_TO_OPENAI = MESSAGES_TO_CHAT.vary(
    "OpenAI",
    {
        "max_tokens": translated("`max_completion_tokens`; 0 is refused"),
        "stop_sequences": translated("`stop`, at most 4"),
        "top_k": hint(),
    },
)

MESSAGES_TO_GOOGLE = MESSAGES_TO_CHAT.vary(
    "Google",
    {
        "output_config": translated("`format`: `response_format`, `effort`: `reasoning_effort`"),
        "thinking": translated("`thinkingConfig`"),
        "stop_sequences": translated("`stopSequences`, at most 5"),
        "metadata": hint(),
    },
)

OUTPUT_HINTS: Mapping[str, Rule] = {"effort": hint(), "task_budget": hint()}
"""The hints in `output_config`."""

THINKING_HINTS: Mapping[str, Rule] = {"budget_tokens": hint()}
"""The hints in `thinking`."""

TOOL_HINTS: Mapping[str, Rule] = {
    "input_examples": hint(),
    "allowed_callers": hint(["direct"]),
    "defer_loading": hint(),
}
"""The hints in a tool."""

BLOCK_HINTS: Mapping[str, Rule] = {"citations": hint({"enabled": False})}
"""The hints in a block of a user's message."""


def drop_block_hints(messages: Json, drop: Drop) -> None:
    """Tell `drop` the hints in the blocks of Messages, which no other format has."""
    for at, message in enumerate(messages):
        content = message.get("content") if message.get("role") == "user" else None
        for block_at, block in enumerate(content if isinstance(content, list) else ()):
            add_inner_hints(block, f"messages[{at}].content[{block_at}]", BLOCK_HINTS, drop)


CLIENT_NAMES: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "reasoning_effort": "output_config.effort",
    "tools[].function": "tools[]",
    "tools[].function.parameters": "tools[].input_schema",
}
"""The names that a client of Messages has for the fields of the chat that its request becomes."""
