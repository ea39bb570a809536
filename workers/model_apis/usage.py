"""What an endpoint says that a call used, read from each API format's own names.

| | `chat/completions` | Messages |
|---|---|---|
| tokens in | `prompt_tokens` | `input_tokens`, and both kinds of the cache |
| of them read from a cache | `prompt_tokens_details.cached_tokens` | `cache_read_input_tokens` |
| of them written to one | `prompt_tokens_details.cache_write_tokens` | `cache_creation_input_tokens` |
| of these for an hour | | `cache_creation.ephemeral_1h_input_tokens` |
| tokens out | `completion_tokens` | `output_tokens` |
| of them reasoning | `completion_tokens_details.reasoning_tokens` | `output_tokens_details.thinking_tokens` |
| audio, of either | `audio_tokens` of the details | |

A part is never more than the whole it is of, whatever an endpoint says. What is no number of tokens (`null`,
a text, less than nothing, more than any call can use) is as if it were not stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gridq.protocol.models import Json, Usage

MICRO = 1_000_000
SERVICES = frozenset({"priority", "flex", "fast"})
"""The kinds of service that endpoints charge otherwise than what they call default or standard."""


MOST_TOKENS = 10**9
"""More than any call can use: an endpoint that states as many is mistaken, and nobody is to pay for that."""


def count(number: Json) -> int:
    """A number of tokens, written as `12` or `12.0`; 0 for what is none."""
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < MOST_TOKENS:
        return 0
    return int(number)


def filled(stated: Json, prompt: Callable[[], int], said: int) -> dict[str, Json]:
    """A `usage` of the OpenAI API format as the endpoint stated it, and what it left out by rule of thumb: `prompt`
    counts the request's tokens, `said` are the answer's. Some state only the total, for embeddings above all.
    """
    told = dict(stated) if isinstance(stated, dict) else {}
    total, tokens_in, tokens_out = (
        count(told.get(name)) for name in ("total_tokens", "prompt_tokens", "completion_tokens")
    )
    if tokens_in and (tokens_out or not said):
        return told
    tokens_out = tokens_out or (max(total - tokens_in, 0) if tokens_in else 0) or said
    tokens_in = tokens_in or max(total - tokens_out, 0) or prompt()
    numbers = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
    return {**told, **numbers, "total_tokens": tokens_in + tokens_out}


def openai_usage(stated: Json, service: Json = None) -> Usage:
    """The `usage` of a chat completion, a completion or embeddings; `service`: the answer's `service_tier`.

    Where reasoning is not part of `completion_tokens` but of `total_tokens` (xAI's way) it is added.
    `micro_dollars` is what the endpoint says the call cost, in dollars in `cost` (OpenRouter's way), else 0.
    """
    told = stated if isinstance(stated, dict) else {}
    prompt = _record(told.get("prompt_tokens_details"))
    answer = _record(told.get("completion_tokens_details"))
    tokens_in, tokens_out = count(told.get("prompt_tokens")), count(told.get("completion_tokens"))
    reasoning = count(answer.get("reasoning_tokens"))
    if reasoning and count(told.get("total_tokens")) == tokens_in + tokens_out + reasoning:
        tokens_out += reasoning
    # DeepSeek's name for what the others call cached_tokens
    cached = count(prompt.get("cached_tokens")) or count(told.get("prompt_cache_hit_tokens"))
    hour = count(_record(prompt.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    return _parts(
        tokens_in,
        tokens_out,
        cached=cached,
        written=count(prompt.get("cache_write_tokens")),
        hour=hour,
        reasoning=reasoning,
        audio_in=count(prompt.get("audio_tokens")),
        audio_out=count(answer.get("audio_tokens")),
        micro=_micro(told.get("cost")),
        service=service,
    )


def anthropic_usage(stated: Json) -> Usage:
    """The `usage` of a message. All input counts, cached or not: the API format states the three apart."""
    told = stated if isinstance(stated, dict) else {}
    cached = count(told.get("cache_read_input_tokens"))
    kept = _record(told.get("cache_creation"))
    hour = count(kept.get("ephemeral_1h_input_tokens"))
    written = count(told.get("cache_creation_input_tokens"))
    written = written or hour + count(kept.get("ephemeral_5m_input_tokens"))
    return _parts(
        count(told.get("input_tokens")) + cached + written,
        count(told.get("output_tokens")),
        cached=cached,
        written=written,
        hour=hour,
        reasoning=count(_record(told.get("output_tokens_details")).get("thinking_tokens")),
        service=told.get("speed"),
    )


def google_usage(stated: Json) -> Usage:
    """The `usageMetadata` of generateContent: `promptTokenCount` has what came from a cache, not the results
    of the endpoint's own tools; `candidatesTokenCount` has no thoughts.
    """
    told = _record(stated)
    thoughts = count(told.get("thoughtsTokenCount"))
    return _parts(
        count(told.get("promptTokenCount")) + count(told.get("toolUsePromptTokenCount")),
        count(told.get("candidatesTokenCount")) + thoughts,
        cached=count(told.get("cachedContentTokenCount")),
        reasoning=thoughts,
        audio_in=_heard(told.get("promptTokensDetails")),
        audio_out=_heard(told.get("candidatesTokensDetails")),
    )


def _heard(details: Json) -> int:
    """The tokens of the modality AUDIO."""
    told = details if isinstance(details, list) else []
    return sum(
        count(_record(each).get("tokenCount")) for each in told if _record(each).get("modality") == "AUDIO"
    )


def as_openai(used: Usage) -> dict[str, Json]:
    """`used` in the OpenAI API format's names; what its vendor has no name for under Anthropic's."""
    prompt: dict[str, Json] = {"cached_tokens": used.tokens_cached}
    if used.tokens_cache_written:
        prompt["cache_write_tokens"] = used.tokens_cache_written
    if used.tokens_cache_hour:
        prompt["cache_creation"] = _creation(used)
    if used.tokens_audio_in:
        prompt["audio_tokens"] = used.tokens_audio_in
    answer: dict[str, Json] = {}
    if used.tokens_reasoning:
        answer["reasoning_tokens"] = used.tokens_reasoning
    if used.tokens_audio_out:
        answer["audio_tokens"] = used.tokens_audio_out
    told: dict[str, Json] = {
        "prompt_tokens": used.tokens_in,
        "completion_tokens": used.tokens_out,
        "total_tokens": used.tokens_in + used.tokens_out,
        "prompt_tokens_details": prompt,
    }
    return told | ({"completion_tokens_details": answer} if answer else {})


def as_anthropic(used: Usage) -> dict[str, Json]:
    """`used` in Messages' names, where input that came from the cache is counted apart."""
    told: dict[str, Json] = {
        "input_tokens": used.tokens_in - used.tokens_cached - used.tokens_cache_written,
        "cache_creation_input_tokens": used.tokens_cache_written,
        "cache_read_input_tokens": used.tokens_cached,
        "output_tokens": used.tokens_out,
    }
    if used.tokens_cache_hour:
        told["cache_creation"] = _creation(used)
    if used.tokens_reasoning:
        told["output_tokens_details"] = {"thinking_tokens": used.tokens_reasoning}
    return told


def _creation(used: Usage) -> dict[str, Json]:
    return {
        "ephemeral_5m_input_tokens": used.tokens_cache_written - used.tokens_cache_hour,
        "ephemeral_1h_input_tokens": used.tokens_cache_hour,
    }


def _parts(
    tokens_in: int,
    tokens_out: int,
    *,
    cached: int = 0,
    written: int = 0,
    hour: int = 0,
    reasoning: int = 0,
    audio_in: int = 0,
    audio_out: int = 0,
    micro: int = 0,
    service: Json = None,
) -> Usage:
    cached = min(cached, tokens_in)
    written = min(written, tokens_in - cached)
    return Usage(
        micro_dollars=micro,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=cached,
        tokens_cache_written=written,
        tokens_cache_hour=min(hour, written),
        tokens_reasoning=min(reasoning, tokens_out),
        tokens_audio_in=min(audio_in, tokens_in),
        tokens_audio_out=min(audio_out, tokens_out),
        service=service if isinstance(service, str) and service in SERVICES else "",
    )


def _record(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _micro(dollars: Json) -> int:
    """Dollars as micro-dollars, rounded up; 0 for what is no amount."""
    if not isinstance(dollars, int | float) or isinstance(dollars, bool) or not 0 < dollars < 1e9:
        return 0
    return math.ceil(round(dollars * MICRO, 3))
