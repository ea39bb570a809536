"""Responses of the `openai` package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.compatibility.contents import (
    CALL,
    CITY,
    FUNCTION,
    PDF,
    PNG,
    TWO_CALLS,
    WORDS,
    City,
    ask,
    make_data_url,
)
from tests.compatibility.matrix import Matrix, find_hints
from tests.compatibility.seats import Seat

CLIENT = "openai (Python), Responses"
TOOLS: Any = [{"type": "function", **FUNCTION, "strict": True}]
LONG = " ".join(f"word{number}" for number in range(30))


@pytest.fixture(scope="module")
def client(seat: Seat) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seat.url}/v1", api_key=seat.key, max_retries=0) as made:
        yield made


def count_input(client: openai.OpenAI, seat: Seat, **request: Any) -> int:
    """Return the tokens that the local model reads of a request."""
    usage = client.responses.create(model=seat.model, max_output_tokens=1, **request).usage
    assert usage is not None
    return usage.input_tokens


def stream_events(client: openai.OpenAI, request: Any) -> list[Any]:
    """Return the events of a streamed response."""
    with client.responses.create(**request, stream=True) as stream:
        return list(stream)


def find_calls(answer: Any) -> list[Any]:
    return [item for item in answer.output if item.type == "function_call"]


def to_input(answer: Any) -> Any:
    """Return the items of an answer as the next request sends them back."""
    return list(answer.output)


def make_output(call: Any, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


def test_plain(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "plain answer", seat.kind):
        answer = client.responses.create(model=seat.model, input=WORDS, max_output_tokens=16)
        assert answer.id.startswith("resp_")
        assert answer.output_text
        assert answer.output[-1].type == "message"
        if not seat.is_local:
            assert (answer.output_text, answer.status) == (WORDS, "completed")
            assert seat.sent.texts == [("user", WORDS)]


def test_streamed(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "streamed answer", seat.kind):
        request: Any = {"model": seat.model, "input": WORDS, "max_output_tokens": 16, "temperature": 0}
        whole = client.responses.create(**request)
        events = stream_events(client, request)
        final = events[-1].response
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == final.output_text == whole.output_text
        assert len(deltas) > 1
        if not seat.is_local:  # this helper takes no answer that was cut off
            with client.responses.stream(**request) as stream:
                assert stream.get_final_response().output_text == whole.output_text
        assert events[0].type == "response.created"
        assert final.status == whole.status
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(numbers)


def test_instructions(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "system text", seat.kind):
        request: Any = {"instructions": "Be terse.", "input": WORDS}
        answer = client.responses.create(model=seat.model, max_output_tokens=16, **request)
        assert answer.output_text
        if seat.is_local:
            assert count_input(client, seat, **request) != count_input(client, seat, input=WORDS)
        else:
            assert seat.sent.system == "Be terse."


def test_turns(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "several turns", seat.kind):
        first = client.responses.create(model=seat.model, input="one", max_output_tokens=16)
        turns: Any = [*ask("one"), *to_input(first), *ask("three")]
        answer = client.responses.create(model=seat.model, input=turns, max_output_tokens=16)
        assert answer.output_text
        if seat.is_local:
            assert count_input(client, seat, input=turns) > count_input(client, seat, input="three")
        else:
            assert answer.output_text == "three"
            assert seat.sent.texts == [("user", "one"), ("assistant", "one"), ("user", "three")]


def test_tool(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "tool call", seat.kind):
        answer = client.responses.create(model=seat.model, input=ask(CALL), tools=TOOLS, max_output_tokens=60)
        (call,) = find_calls(answer)
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
        assert call.status == "completed"
        assert seat.sent.tools == {"weather": CITY}


def test_streamed_tool(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "streamed tool call", seat.kind):
        with client.responses.stream(
            model=seat.model, input=ask(CALL), tools=TOOLS, max_output_tokens=60
        ) as stream:
            events = list(stream)
            final = stream.get_final_response()
        (call,) = find_calls(final)
        assert json.loads(call.arguments) == {"city": "Bern"}
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert "".join(deltas) == call.arguments


def test_tool_loop(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "tool loop", seat.kind):
        request: Any = {"model": seat.model, "tools": TOOLS, "max_output_tokens": 60}
        history: Any = ask(CALL)
        for city in ("Bern", "Oslo"):
            answer = client.responses.create(**request, input=history)
            (call,) = find_calls(answer)
            history = [*history, *to_input(answer), make_output(call, f"sun in {city}")]
            last = client.responses.create(**request, input=history)
            assert last.output_text == f"sun in {city}"
            history = [*history, *to_input(last), *ask('CALL weather {"city": "Oslo"}')]
        calls = [call for turn in seat.sent.turns for call in turn.calls]
        results = [result for turn in seat.sent.turns for result in turn.results]
        assert [call.arguments for call in calls] == [{"city": "Bern"}, {"city": "Oslo"}]
        assert [result.id for result in results] == [call.id for call in calls]


def test_parallel_tools(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "parallel tools", seat.kind):
        request: Any = {"model": seat.model, "tools": TOOLS, "max_output_tokens": 60}
        answer: Any = client.responses.create(**request, input=ask(TWO_CALLS))
        with client.responses.stream(**request, input=ask(TWO_CALLS)) as stream:
            streamed = stream.get_final_response()
        for each in (answer, streamed):
            calls = find_calls(each)
            cities = [json.loads(call.arguments)["city"] for call in calls]
            assert cities == ["Bern", "Oslo"]
            outputs = [make_output(call, f"sun in {city}") for call, city in zip(calls, cities, strict=True)]
            last = client.responses.create(**request, input=[*ask(TWO_CALLS), *to_input(each), *outputs])
            assert last.output_text == "sun in Bern; sun in Oslo"


def test_one_tool_at_a_time(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "one tool at a time", seat.kind):
        answer = client.responses.create(
            model=seat.model, input=ask(TWO_CALLS), tools=TOOLS, parallel_tool_calls=False,
            max_output_tokens=60,
        )  # fmt: skip
        assert len(find_calls(answer)) == 1
        assert not seat.sent.parallel or seat.kind == "google"  # Google's API cannot say so


def test_forced_tool(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "forced tool", seat.kind):
        choices: Any = ({"type": "function", "name": "weather"}, "required")
        for choice in choices:
            answer = client.responses.create(
                model=seat.model, input=WORDS, tools=TOOLS, tool_choice=choice, max_output_tokens=60
            )
            (call,) = find_calls(answer)
            assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})


def test_no_tools(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "no tools", seat.kind):
        answer = client.responses.create(
            model=seat.model, input=ask(CALL), tools=TOOLS, tool_choice="none", max_output_tokens=16
        )
        assert answer.output_text
        assert not find_calls(answer)


def test_structured(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "structured output", seat.kind):
        request: Any = {"model": seat.model, "input": '{"city":"Bern"}', "max_output_tokens": 60}
        answer = client.responses.parse(**request, text_format=City)
        with client.responses.stream(**request, text_format=City) as stream:
            final = stream.get_final_response()
        assert answer.output_parsed is not None
        assert final.output_parsed is not None
        if not seat.is_local:
            assert answer.output_parsed == final.output_parsed == City(city="Bern")
            assert seat.sent.schema is not None
            assert seat.sent.schema["properties"].keys() == {"city"}


def test_json(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "JSON mode", seat.kind):
        answer = client.responses.create(
            model=seat.model,
            input='Repeat this JSON: {"city": "Bern"}',
            text={"format": {"type": "json_object"}},
            max_output_tokens=160,
            temperature=0,
        )
        if seat.kind == "anthropic":  # it has no such mode, so it is asked for in words
            assert "JSON" in seat.sent.system
        else:
            assert isinstance(json.loads(answer.output_text), dict)
            assert seat.is_local or seat.sent.wants_json


def make_content(part: dict[str, Any]) -> Any:
    return [{"role": "user", "content": [{"type": "input_text", "text": WORDS}, part]}]


def test_image(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "image", seat.kind):
        part = {"type": "input_image", "image_url": make_data_url("image/png", PNG), "detail": "auto"}
        answer = client.responses.create(model=seat.model, input=make_content(part), max_output_tokens=16)
        assert answer.output_text == WORDS
        assert [(media.media_type, media.data) for media in seat.sent.media] == [("image/png", PNG)]


def test_pdf(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "PDF", seat.kind):
        data = make_data_url("application/pdf", PDF)
        part = {"type": "input_file", "filename": "a.pdf", "file_data": data}
        answer = client.responses.create(model=seat.model, input=make_content(part), max_output_tokens=16)
        assert answer.output_text == WORDS
        assert [(media.media_type, media.data) for media in seat.sent.media] == [("application/pdf", PDF)]


def test_limit(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "token limit", seat.kind):
        text = "Tell me a very long story." if seat.is_local else LONG
        answer = client.responses.create(model=seat.model, input=text, max_output_tokens=16)
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.usage is not None
        assert answer.usage.output_tokens == 16


def test_usage(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "usage", seat.kind):
        request: Any = {"model": seat.model, "input": WORDS, "max_output_tokens": 16, "temperature": 0}
        usage = client.responses.create(**request).usage
        streamed = stream_events(client, request)[-1].response.usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (streamed.input_tokens, streamed.output_tokens)
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert seat.is_local or (usage.input_tokens, usage.output_tokens) == (4, 4)


def test_count(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "token count", seat.kind):
        few = client.responses.input_tokens.count(model=seat.model, input=WORDS).input_tokens
        more = client.responses.input_tokens.count(model=seat.model, input=WORDS * 9, tools=TOOLS)
        assert 0 < few < (more.input_tokens or 0)


def test_reasoning(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """A summary of the reasoning is shown, or else its tokens are counted."""
    with matrix.cell(CLIENT, "reasoning", seat.kind):
        request: Any = {
            "model": seat.thinker,
            "input": WORDS,
            "reasoning": {"effort": "low", "summary": "auto"},
            "max_output_tokens": 16 if seat.is_local else 5000,
        }
        raw = client.responses.with_raw_response.create(**request)
        answer = raw.parse()
        assert answer.output_text
        if seat.is_local:  # it does not think
            assert "reasoning.effort" in find_hints(raw.headers)
            return
        assert seat.sent.thinks
        assert answer.output_text == WORDS
        if seat.kind == "openai":  # whose chats do not show it
            assert answer.usage is not None
            assert answer.usage.output_tokens_details.reasoning_tokens == 3
            return
        with client.responses.stream(**request) as stream:
            final = stream.get_final_response()
        for each in (answer, final):
            (thought,) = [item for item in each.output if item.type == "reasoning"]
            assert [part.text for part in thought.summary] == ["let me see"]


def test_reasoning_round_trip(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "reasoning round trip with tools", seat.kind):
        request: Any = {
            "model": seat.thinker,
            "tools": TOOLS,
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "store": False,
            "max_output_tokens": 16 if seat.is_local else 5000,
        }
        first = client.responses.create(**request, input=ask(CALL))
        (call,) = find_calls(first)
        history: Any = [*ask(CALL), *to_input(first), make_output(call, "sun in Bern")]
        last = client.responses.create(**request, input=history)
        assert last.output_text == "sun in Bern"
        if seat.kind != "openai":  # whose chats keep no reasoning
            assert seat.sent.turns[1].thoughts


def test_logprobs(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "log probabilities", seat.kind):
        answer: Any = client.responses.create(
            model=seat.model,
            input=WORDS,
            include=["message.output_text.logprobs"],
            top_logprobs=1,
            max_output_tokens=16,
        )
        part = answer.output[-1].content[0]
        assert "".join(each.token for each in part.logprobs) == part.text
        assert part.logprobs


def test_background(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "background response", seat.kind):
        request: Any = {"model": seat.model, "input": WORDS, "max_output_tokens": 16}
        queued = client.responses.create(**request, background=True)
        assert queued.status in ("queued", "in_progress")
        until = time.monotonic() + 60
        found = client.responses.retrieve(queued.id)
        while found.status in ("queued", "in_progress") and time.monotonic() < until:
            time.sleep(0.05)
            found = client.responses.retrieve(queued.id)
        assert found.id == queued.id
        assert found.output_text
        assert seat.is_local or (found.output_text, found.status) == (WORDS, "completed")
        with client.responses.retrieve(queued.id, stream=True) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == found.output_text
        client.responses.delete(queued.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(queued.id)


def test_cancel(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "cancelled response", seat.kind):
        # an answer that takes a while, here or at the endpoint
        text = "Tell me a very long story." if seat.is_local else "word " * 3000
        queued = client.responses.create(model=seat.model, input=text, background=True)
        cancelled = client.responses.cancel(queued.id)
        assert cancelled.status == "cancelled"
        assert client.responses.retrieve(queued.id).status == "cancelled"


def test_stored(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """The grid keeps no conversation, so it refuses to continue one."""
    with matrix.cell(CLIENT, "stored responses", seat.kind):
        first = client.responses.create(model=seat.model, input=WORDS, store=True, max_output_tokens=16)
        assert first.to_dict()["store"] is False
        client.responses.create(
            model=seat.model, input="go on", previous_response_id=first.id, max_output_tokens=16
        )


def test_rate_limit(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "rate limit", seat.kind):
        limited = client.with_options(api_key=seat.limited_key)
        request: Any = {"model": seat.model, "input": WORDS, "max_output_tokens": 16}
        with contextlib.suppress(openai.RateLimitError):
            limited.responses.create(**request)
        with pytest.raises(openai.RateLimitError) as caught:
            limited.responses.create(**request)
        assert int(caught.value.response.headers["retry-after"]) > 0


def test_bad_request(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "bad request", seat.kind):
        hot: Any = "hot"
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model=seat.model, input=WORDS, temperature=hot, stream=stream)
            assert caught.value.param == "temperature"
            if not seat.is_local:
                with pytest.raises(openai.BadRequestError) as caught:
                    client.responses.create(model="picky", input=WORDS, stream=stream)
                assert "temperature" in str(caught.value)


def test_long(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "too long a context", seat.kind):
        model = seat.model if seat.is_local else "short-context"
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=model, input="so it goes " * 1000, max_output_tokens=16)
        assert caught.value.code == "context_length_exceeded"


def test_many(matrix: Matrix, seat: Seat) -> None:
    async def ask_one(client: openai.AsyncOpenAI, number: int) -> str:
        request: Any = {"model": seat.model, "input": f"number {number}", "max_output_tokens": 16}
        if number % 2:
            return (await client.responses.create(**request)).output_text
        text = ""
        async with await client.responses.create(**request, stream=True) as stream:
            async for event in stream:
                text += event.delta if event.type == "response.output_text.delta" else ""
        return text

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{seat.url}/v1", api_key=seat.key, max_retries=0) as client:
            return await asyncio.gather(
                *(ask_one(client, number) for number in range(4 if seat.is_local else 12))
            )

    count = 4 if seat.is_local else 12
    with matrix.cell(CLIENT, "many at once", seat.kind):
        texts = asyncio.run(ask_all())
        assert all(texts)
        assert seat.is_local or texts == [f"number {number}" for number in range(count)]
