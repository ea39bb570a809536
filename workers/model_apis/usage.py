"""Parse and format the usage that an endpoint states, in the names of each API format. Those of Responses are
the same as of Messages, but `input_tokens` include the cache, as in `input_tokens_details`.

| | `chat/completions` | Messages |
|---|---|---|
| tokens in | `prompt_tokens` | `input_tokens` plus cache reads and cache writes |
| of them read from a cache | `prompt_tokens_details.cached_tokens` | `cache_read_input_tokens` |
| of them written to one | `prompt_tokens_details.cache_write_tokens` | `cache_creation_input_tokens` |
| of these for an hour | | `cache_creation.ephemeral_1h_input_tokens` |
| tokens out | `completion_tokens` | `output_tokens` |
| of them reasoning | `completion_tokens_details.reasoning_tokens` | `output_tokens_details.thinking_tokens` |
| audio, in or out | `audio_tokens` of the details | |

A part is never larger than its whole, whatever an endpoint states. A value that is no plausible number of
tokens (`null`, a string, a negative or absurdly large number) counts as not stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gridq.protocol.models import Json, Usage

MICRO_DOLLARS = 1_000_000
SERVICES = frozenset({"priority", "flex", "fast"})
"""The service tiers with prices of their own, other than default and standard."""


MAX_TOKENS = 10**9
"""More than any call can use. An endpoint that states as many is mistaken, and nobody should pay for that."""


def parse_count(number: Json) -> int:
    """Return a number of tokens, written as `12` or `12.0`. Return 0 for anything else."""
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < MAX_TOKENS:
        return 0
    return int(number)


def is_count(number: Json) -> bool:
    """Return whether an endpoint states a plausible number of tokens, 0 included."""
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and 0 <= number < MAX_TOKENS


def complete_usage(
    stated: Json, count_prompt: Callable[[], int], answer_tokens: int, *, is_final: bool = True
) -> dict[str, Json]:
    """Return a `usage` of the OpenAI API format with estimates for what the endpoint left out.

    `count_prompt` estimates the request's tokens and `answer_tokens` is the estimate for the answer. Some
    endpoints state only the total, above all for embeddings. A stated 0 is 0, unless the total is larger, or
    the answer goes on (not `is_final`).
    """
    usage = dict(stated) if isinstance(stated, dict) else {}
    total, tokens_in, tokens_out = (
        parse_count(usage.get(name)) for name in ("total_tokens", "prompt_tokens", "completion_tokens")
    )
    zero_counts = is_final and total <= tokens_in + tokens_out
    has_in = tokens_in or (zero_counts and is_count(usage.get("prompt_tokens")))
    has_out = tokens_out or not answer_tokens or (zero_counts and is_count(usage.get("completion_tokens")))
    if has_in and has_out:
        return usage
    if not has_out:
        tokens_out = (max(total - tokens_in, 0) if tokens_in else 0) or answer_tokens
    if not has_in:
        tokens_in = max(total - tokens_out, 0) or count_prompt()
    numbers = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
    return {**usage, **numbers, "total_tokens": tokens_in + tokens_out}


def parse_openai_usage(stated: Json, service: Json = None) -> Usage:
    """Parse the `usage` of a chat completion, a completion or embeddings. `service` is its `service_tier`.

    Adds reasoning tokens to the output if they are part of `total_tokens` but not of `completion_tokens`, as
    at xAI. `micro_dollars` is the cost that the endpoint states in `cost`, as OpenRouter does, else 0.
    """
    usage = _as_object(stated)
    prompt = _as_object(usage.get("prompt_tokens_details"))
    answer = _as_object(usage.get("completion_tokens_details"))
    tokens_in, tokens_out = (
        parse_count(usage.get("prompt_tokens")),
        parse_count(usage.get("completion_tokens")),
    )
    reasoning = parse_count(answer.get("reasoning_tokens"))
    if reasoning and parse_count(usage.get("total_tokens")) == tokens_in + tokens_out + reasoning:
        tokens_out += reasoning
    # DeepSeek's name for cached_tokens is prompt_cache_hit_tokens
    cached = parse_count(prompt.get("cached_tokens")) or parse_count(usage.get("prompt_cache_hit_tokens"))
    cache_creation = _as_object(prompt.get("cache_creation"))
    return _make_usage(
        tokens_in,
        tokens_out,
        cached=cached,
        cache_written=parse_count(prompt.get("cache_write_tokens")),
        cache_hour=parse_count(cache_creation.get("ephemeral_1h_input_tokens")),
        reasoning=reasoning,
        audio_in=parse_count(prompt.get("audio_tokens")),
        audio_out=parse_count(answer.get("audio_tokens")),
        micro_dollars=to_micro_dollars(usage.get("cost")),
        service=service,
    )


def parse_responses_usage(stated: Json, service: Json = None) -> Usage:
    """Parse the `usage` of a response: the numbers of a chat completion under the names of Responses."""
    return parse_openai_usage(_rename_for_chat(stated), service)


def complete_responses_usage(
    stated: Json, count_prompt: Callable[[], int], answer_tokens: int, *, is_final: bool = True
) -> dict[str, Json]:
    """Return a `usage` of Responses with estimates for what the endpoint left out; see `complete_usage`."""
    named = _rename_for_chat(stated)
    completed = complete_usage(named, count_prompt, answer_tokens, is_final=is_final)
    if isinstance(stated, dict) and completed == named:
        return stated
    return format_responses_usage(parse_openai_usage(completed))


def _rename_for_chat(stated: Json) -> dict[str, Json]:
    """Return the `usage` of a response with the names of a chat completion beside its own."""
    usage = _as_object(stated)
    return {**usage, **{new: usage[old] for old, new in _CHAT_NAMES.items() if old in usage}}


def format_responses_usage(usage: Usage) -> dict[str, Json]:
    """Format `usage` in the names of Responses."""
    return {
        "input_tokens": usage.tokens_in,
        "input_tokens_details": {
            "cached_tokens": usage.tokens_cached,
            "cache_write_tokens": usage.tokens_cache_written,
        },
        "output_tokens": usage.tokens_out,
        "output_tokens_details": {"reasoning_tokens": usage.tokens_reasoning},
        "total_tokens": usage.tokens_in + usage.tokens_out,
    }


_CHAT_NAMES = {
    "input_tokens": "prompt_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens": "completion_tokens",
    "output_tokens_details": "completion_tokens_details",
}


def parse_anthropic_usage(stated: Json) -> Usage:
    """Parse the `usage` of a message, which states uncached input, cache reads and cache writes apart."""
    usage = _as_object(stated)
    cached = parse_count(usage.get("cache_read_input_tokens"))
    cache_creation = _as_object(usage.get("cache_creation"))
    hour = parse_count(cache_creation.get("ephemeral_1h_input_tokens"))
    written = parse_count(usage.get("cache_creation_input_tokens"))
    written = written or hour + parse_count(cache_creation.get("ephemeral_5m_input_tokens"))
    return _make_usage(
        parse_count(usage.get("input_tokens")) + cached + written,
        parse_count(usage.get("output_tokens")),
        cached=cached,
        cache_written=written,
        cache_hour=hour,
        reasoning=parse_count(_as_object(usage.get("output_tokens_details")).get("thinking_tokens")),
        service=usage.get("speed"),
    )


def parse_google_usage(stated: Json) -> Usage:
    """Parse the `usageMetadata` of generateContent.

    `promptTokenCount` includes cache reads, but not the results of the endpoint's own tools.
    `candidatesTokenCount` does not include thoughts.
    """
    usage = _as_object(stated)
    thoughts = parse_count(usage.get("thoughtsTokenCount"))
    return _make_usage(
        parse_count(usage.get("promptTokenCount")) + parse_count(usage.get("toolUsePromptTokenCount")),
        parse_count(usage.get("candidatesTokenCount")) + thoughts,
        cached=parse_count(usage.get("cachedContentTokenCount")),
        reasoning=thoughts,
        audio_in=_count_audio_tokens(usage.get("promptTokensDetails")),
        audio_out=_count_audio_tokens(usage.get("candidatesTokensDetails")),
    )


def _count_audio_tokens(details: Json) -> int:
    items = map(_as_object, details if isinstance(details, list) else [])
    return sum(parse_count(item.get("tokenCount")) for item in items if item.get("modality") == "AUDIO")


def format_openai_usage(usage: Usage) -> dict[str, Json]:
    """Format `usage` in the names of the OpenAI API format, and in Anthropic's where OpenAI has none."""
    prompt: dict[str, Json] = {"cached_tokens": usage.tokens_cached}
    if usage.tokens_cache_written:
        prompt["cache_write_tokens"] = usage.tokens_cache_written
    if usage.tokens_cache_hour:
        prompt["cache_creation"] = _format_cache_creation(usage)
    if usage.tokens_audio_in:
        prompt["audio_tokens"] = usage.tokens_audio_in
    answer: dict[str, Json] = {}
    if usage.tokens_reasoning:
        answer["reasoning_tokens"] = usage.tokens_reasoning
    if usage.tokens_audio_out:
        answer["audio_tokens"] = usage.tokens_audio_out
    formatted: dict[str, Json] = {
        "prompt_tokens": usage.tokens_in,
        "completion_tokens": usage.tokens_out,
        "total_tokens": usage.tokens_in + usage.tokens_out,
        "prompt_tokens_details": prompt,
    }
    return formatted | ({"completion_tokens_details": answer} if answer else {})


def format_anthropic_usage(usage: Usage) -> dict[str, Json]:
    """Format `usage` in the names of Messages, which count input from and to the cache apart."""
    formatted: dict[str, Json] = {
        "input_tokens": usage.tokens_in - usage.tokens_cached - usage.tokens_cache_written,
        "cache_creation_input_tokens": usage.tokens_cache_written,
        "cache_read_input_tokens": usage.tokens_cached,
        "output_tokens": usage.tokens_out,
    }
    if usage.tokens_cache_hour:
        formatted["cache_creation"] = _format_cache_creation(usage)
    if usage.tokens_reasoning:
        formatted["output_tokens_details"] = {"thinking_tokens": usage.tokens_reasoning}
    return formatted


def _format_cache_creation(usage: Usage) -> dict[str, Json]:
    return {
        "ephemeral_5m_input_tokens": usage.tokens_cache_written - usage.tokens_cache_hour,
        "ephemeral_1h_input_tokens": usage.tokens_cache_hour,
    }


def _make_usage(
    tokens_in: int,
    tokens_out: int,
    *,
    cached: int = 0,
    cache_written: int = 0,
    cache_hour: int = 0,
    reasoning: int = 0,
    audio_in: int = 0,
    audio_out: int = 0,
    micro_dollars: int = 0,
    service: Json = None,
) -> Usage:
    """Return a `Usage` whose parts are no larger than their whole."""
    cached = min(cached, tokens_in)
    cache_written = min(cache_written, tokens_in - cached)
    return Usage(
        micro_dollars=micro_dollars,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=cached,
        tokens_cache_written=cache_written,
        tokens_cache_hour=min(cache_hour, cache_written),
        tokens_reasoning=min(reasoning, tokens_out),
        tokens_audio_in=min(audio_in, tokens_in),
        tokens_audio_out=min(audio_out, tokens_out),
        service=service if isinstance(service, str) and service in SERVICES else "",
    )


def _as_object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def to_micro_dollars(dollars: Json) -> int:
    """Convert dollars to micro-dollars, rounded up. Return 0 for a value that is no amount."""
    if not isinstance(dollars, int | float) or isinstance(dollars, bool) or not 0 < dollars < 1e9:
        return 0
    return math.ceil(round(dollars * MICRO_DOLLARS, 3))
