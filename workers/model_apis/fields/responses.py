"""The tables of OpenAI's Responses at seats of other formats. Source: `openai.types.responses`."""

from __future__ import annotations

from collections.abc import Mapping

from gridq.protocol.response_needs import VENDOR_FIELDS
from workers.model_apis.api_request import RESPONSES
from workers.model_apis.fields.table import FieldTable, Rule, hint, passed, refused, translated

AT_CHAT = "at a seat that has no Responses API"

RESPONSES_TO_CHAT = FieldTable(
    RESPONSES,
    "OpenAI-compatible, local",
    AT_CHAT,
    {
        "model": passed(),
        "input": translated("`messages`"),
        "instructions": translated("the first message"),
        "tools": translated("`tools`; the vendor's own are refused"),
        "tool_choice": translated("`tool_choice`, `tools`"),
        "parallel_tool_calls": translated("the same, if there are tools"),
        "text": translated("`format`: `response_format`; `verbosity` is a hint"),
        "reasoning": translated("`effort`: `reasoning_effort`; the rest are hints, `summary` is kept"),
        "include": translated("log probabilities"),
        "max_output_tokens": translated("`max_tokens`"),
        "top_logprobs": translated("`logprobs`, `top_logprobs`"),
        "temperature": passed(),
        "top_p": passed(),
        "user": passed(),
        "service_tier": passed(),
        "stream": translated("set by the grid"),
        "stream_options": translated("set by the grid"),
        "background": translated("set by the grid"),
        "metadata": translated("the answer repeats it"),
        "previous_response_id": refused(about="the grid keeps no responses"),
        "conversation": refused(about="the grid keeps no conversations"),
        **{name: refused() for name in VENDOR_FIELDS},
        "n": refused(1, expected="1"),
        "store": hint(),
        "background_options": hint(),
        "truncation": hint("disabled", about="a text that is too long is an error"),
        "max_tool_calls": hint(about="counts calls of the vendor's own tools"),
        "prompt_cache_key": hint(),
        "prompt_cache_options": hint(),
        "prompt_cache_retention": hint(),
        "safety_identifier": hint(),
        "image": hint(),
        # not OpenAI's own
        "client_metadata": hint(),
        **{
            name: passed()
            for name in (
                *("seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "top_k", "min_p"),
                *("repetition_penalty", "cache_control", "chat_template_kwargs"),
            )
        },
    },
)

RESPONSES_TO_OPENAI = RESPONSES_TO_CHAT.vary(
    "OpenAI",
    {
        "max_output_tokens": translated("`max_completion_tokens`"),
        "text": translated("`format`: `response_format`, `verbosity`"),
        "prompt_cache_key": passed(),
        "safety_identifier": passed(),
    },
)

RESPONSES_TO_RESPONSES = FieldTable(
    RESPONSES,
    "with Responses",
    "in the grid",
    {
        "input": translated("passed but for ids and reasoning that are another's"),
        "background": translated("set by the grid"),
        "background_options": hint(),
        "store": hint(about="nothing is stored"),
        "previous_response_id": refused(about="the grid keeps no responses"),
        "conversation": refused(about="the grid keeps no conversations"),
    },
    refuses_unknown=False,
)
"""At a seat that has Responses itself, to which all else goes as it came."""

TEXT_HINTS: Mapping[str, Rule] = {"verbosity": hint("medium")}
"""The hints in `text`, except at OpenAI's own API."""

REASONING_HINTS: Mapping[str, Rule] = {"mode": hint("standard"), "context": hint("auto", "current_turn")}
"""The hints in `reasoning`."""

CLIENT_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "tools[].function": "tools[]",
    "tool_choice.function": "tool_choice",
}
"""The names that a client of Responses has for the fields of the chat that its request becomes."""
