"""Usage in each API format, and its translation to the other without loss."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.protocol.models import Usage
from gridq.protocol.token_count import count_tokens
from workers.model_apis.anthropic.from_chat import CompletionChunks, translate_usage
from workers.model_apis.api_request import CHAT as CHAT_PATH
from workers.model_apis.chat_assembly import ChatAssembler
from workers.model_apis.message_assembly import MessageAssembler
from workers.model_apis.openai.answers import MessageEvents, build_message
from workers.model_apis.usage import (
    MAX_TOKENS,
    complete_usage,
    format_anthropic_usage,
    format_openai_usage,
    parse_anthropic_usage,
    parse_openai_usage,
)

CHAT: dict[str, Any] = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30, "audio_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 20, "audio_tokens": 3},
}
MESSAGE: dict[str, Any] = {
    "input_tokens": 10,
    "cache_read_input_tokens": 60,
    "cache_creation_input_tokens": 30,
    "cache_creation": {"ephemeral_5m_input_tokens": 18, "ephemeral_1h_input_tokens": 12},
    "output_tokens": 50,
    "output_tokens_details": {"thinking_tokens": 20},
}


def test_the_parts_of_chat_usage_are_counted_once():
    assert parse_openai_usage(CHAT) == Usage(
        tokens_in=100,
        tokens_out=50,
        tokens_cached=60,
        tokens_cache_written=30,
        tokens_reasoning=20,
        tokens_audio_in=4,
        tokens_audio_out=3,
    )


def test_the_input_of_a_message_is_the_sum_of_its_parts():
    assert parse_anthropic_usage(MESSAGE) == Usage(
        tokens_in=100,
        tokens_out=50,
        tokens_cached=60,
        tokens_cache_written=30,
        tokens_cache_hour=12,
        tokens_reasoning=20,
    )


def test_cache_writes_may_be_stated_by_lifetime_only():
    stated = {key: value for key, value in MESSAGE.items() if key != "cache_creation_input_tokens"}
    assert parse_anthropic_usage(stated) == parse_anthropic_usage(MESSAGE)


@pytest.mark.parametrize(
    "used", [parse_openai_usage(CHAT), parse_anthropic_usage(MESSAGE), Usage(tokens_in=3)]
)
def test_usage_survives_the_round_trip_in_each_api(used: Usage):
    assert parse_openai_usage(format_openai_usage(used)) == used
    without_audio = used.model_copy(
        update={"tokens_audio_in": 0, "tokens_audio_out": 0}
    )  # Messages has no audio
    assert parse_anthropic_usage(format_anthropic_usage(used)) == without_audio


@pytest.mark.parametrize(
    ("stated", "used"),
    [
        # xAI counts reasoning beside completion_tokens, in total_tokens only
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "total_tokens": 27,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(tokens_in=5, tokens_out=22, tokens_reasoning=20),
        ),
        # DeepSeek's own name
        (
            {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8},
            Usage(tokens_in=9, tokens_out=1, tokens_cached=8),
        ),
        # OpenRouter says what it cost
        (
            {"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.00000115},
            Usage(tokens_in=9, tokens_out=1, micro_dollars=2),
        ),
        # parts that are more than the whole
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 5}},
            Usage(tokens_in=9, tokens_cached=9),
        ),
        ({"prompt_tokens": -1, "completion_tokens": True, "cost": "free"}, Usage()),
        (
            {"prompt_tokens": 1, "prompt_tokens_details": [], "completion_tokens_details": 3},
            Usage(tokens_in=1),
        ),
        ({"cost": float("inf")}, Usage()),
        (None, Usage()),
    ],
)
def test_provider_specific_usage_is_understood(stated: Any, used: Usage):
    assert parse_openai_usage(stated) == used


@pytest.mark.parametrize(
    ("stated", "used"),
    [
        (None, (7, 3)),
        ("many", (7, 3)),
        ({}, (7, 3)),
        ({"prompt_tokens": None, "completion_tokens": None}, (7, 3)),
        ({"prompt_tokens": "10", "completion_tokens": "5"}, (7, 3)),
        ({"prompt_tokens": -10, "completion_tokens": -5}, (7, 3)),
        ({"prompt_tokens": True, "completion_tokens": float("nan")}, (7, 3)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, (0, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 0}, (9, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 14}, (11, 3)),
        ({"prompt_tokens": 10**30, "completion_tokens": MAX_TOKENS}, (7, 3)),
        ({"prompt_tokens": 10.0, "completion_tokens": 5.0}, (10, 5)),
        ({"completion_tokens": 5}, (7, 5)),
        ({"prompt_tokens": 10}, (10, 3)),
        ({"prompt_tokens": 10, "total_tokens": 14}, (10, 4)),
        ({"completion_tokens": 5, "total_tokens": 14}, (9, 5)),
        ({"total_tokens": 14}, (11, 3)),
    ],
)
def test_usage_that_is_not_stated_is_estimated(stated: Any, used: tuple[int, int]):
    found = parse_openai_usage(complete_usage(stated, lambda: 7, 3))
    assert (found.tokens_in, found.tokens_out) == used


def test_stated_usage_is_passed_on_unchanged():
    assert complete_usage(CHAT, lambda: 7, 3) == CHAT
    assert (
        complete_usage({"prompt_tokens": 9, "completion_tokens": 0}, lambda: 7, 0)["completion_tokens"] == 0
    )
    assert complete_usage({"cost": 0.5}, lambda: 7, 3)["cost"] == 0.5


@pytest.mark.parametrize(
    ("tier", "service"),
    [("priority", "priority"), ("flex", "flex"), ("default", ""), ("auto", ""), (None, ""), (["flex"], "")],
)
def test_a_service_tier_with_its_own_prices_is_kept(tier: Any, service: str):
    assert parse_openai_usage(CHAT, tier).service == service
    assert parse_anthropic_usage({**MESSAGE, "speed": tier}).service == service


def test_the_last_chunk_and_event_have_the_usage_of_their_api():
    chunks = CompletionChunks({"model": "m"})
    begun = {**MESSAGE, "output_tokens": 1, "output_tokens_details": None}
    chunks.add_event({"type": "message_start", "message": {"id": "1", "usage": begun}})
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    stated = {"output_tokens": 50, "output_tokens_details": {"thinking_tokens": 20}}
    last = chunks.add_event({**stop, "usage": stated})[-1]
    assert last["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {
            "cached_tokens": 60,
            "cache_write_tokens": 30,
            "cache_creation": MESSAGE["cache_creation"],
        },
        "completion_tokens_details": {"reasoning_tokens": 20},
    }

    events = MessageEvents({"model": "m", "messages": []})
    head = {"id": "1", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    assert list(events.add_chunk(head))
    assert list(events.add_chunk({"choices": [], "usage": last["usage"]})) == []
    end = list(events.end())[-2]
    assert end["usage"] == MESSAGE


ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "so it goes on"}]}
ZERO: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
NONE: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0}


def chat_chunk(**fields: Any) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": 0, "delta": {"content": "so"}, **fields}]}


def test_a_stated_zero_is_zero_in_a_chat() -> None:
    whole = ChatAssembler(CHAT_PATH, ASK)
    message = {"role": "assistant", "content": "so"}
    whole.add_answer({"choices": [{"message": message, "finish_reason": "stop"}], "usage": ZERO})
    streamed = ChatAssembler(CHAT_PATH, ASK)
    streamed.add_event(chat_chunk())
    assert streamed.compute_usage().tokens_out == 1, "it is not known yet"
    streamed.add_event(chat_chunk(finish_reason="stop"))
    streamed.add_event({"choices": [], "usage": ZERO})
    for assembler in (whole, streamed):
        assert assembler.compute_usage() == Usage()


def test_a_stated_zero_is_zero_in_a_message() -> None:
    whole = MessageAssembler(ASK)
    whole.add_answer({"content": [{"type": "text", "text": "so"}], "stop_reason": "end_turn", "usage": NONE})
    streamed = MessageAssembler(ASK)
    streamed.add_event({"type": "message_start", "message": {"usage": NONE}})
    delta = {"type": "text_delta", "text": "so"}
    streamed.add_event({"type": "content_block_delta", "index": 0, "delta": delta})
    assert streamed.compute_usage().tokens_out == 1, "the numbers of message_start are preliminary"
    assert streamed.compute_usage().tokens_in > 0
    streamed.add_event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": NONE})
    for assembler in (whole, streamed):
        assert assembler.compute_usage() == Usage()


def test_a_message_starts_with_the_input_tokens() -> None:
    stated = {"prompt_tokens": 77, "completion_tokens": 0, "total_tokens": 77}
    for usage, tokens in ((None, count_tokens(ASK)), (stated, 77)):
        events = MessageEvents(ASK)
        start = next(iter(events.add_chunk({**chat_chunk(), "usage": usage})))
        assert start["message"]["usage"]["input_tokens"] == tokens > 0
        assert start["message"]["usage"]["output_tokens"] == 0


def test_usage_that_is_not_stated_is_not_zero_after_a_translation() -> None:
    answer = {"id": "1", "choices": [{"message": {"content": "so it goes"}, "finish_reason": "stop"}]}
    used = build_message(answer, ASK)["usage"]
    assert used["input_tokens"] == count_tokens(ASK)
    assert used["output_tokens"] > 0
    assert translate_usage({"input_tokens": 3}) == {
        "prompt_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert translate_usage({"output_tokens": 3}) == {
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
