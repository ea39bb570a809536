"""Chats of the `openai` package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.compatibility.contents import (
    CALL,
    CITY,
    FUNCTION,
    HELLO,
    PDF,
    PNG,
    TWO_CALLS,
    WAV,
    WORDS,
    City,
    ask,
    ask_for_city,
    make_data_url,
    to_base64,
)
from tests.compatibility.matrix import Matrix, find_hints
from tests.compatibility.seats import Seat

CLIENT = "openai (Python), chat"
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
STRICT_TOOLS: Any = [{"type": "function", "function": {**FUNCTION, "strict": True}}]


@pytest.fixture(scope="module")
def client(seat: Seat) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seat.url}/v1", api_key=seat.key, max_retries=0) as made:
        yield made


def count_prompt(client: openai.OpenAI, seat: Seat, **request: Any) -> int:
    """Return the tokens that the local model reads of a request."""
    answer = client.chat.completions.create(model=seat.model, max_tokens=1, **request)
    assert answer.usage is not None
    return answer.usage.prompt_tokens


def test_plain(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "plain answer", seat.kind):
        answer = client.chat.completions.create(model=seat.model, messages=HELLO, max_tokens=8)
        message = answer.choices[0].message
        assert message.role == "assistant"
        assert message.content
        assert answer.id.startswith("chatcmpl-")
        assert answer.model == seat.model
        if not seat.is_local:
            assert message.content == WORDS
            assert answer.choices[0].finish_reason == "stop"
            assert seat.sent.texts == [("user", WORDS)]


def test_streamed(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "streamed answer", seat.kind):
        request: Any = {"model": seat.model, "messages": HELLO, "max_tokens": 12, "temperature": 0}
        whole = client.chat.completions.create(**request).choices[0]
        with client.chat.completions.create(**request, stream=True) as stream:
            chunks = list(stream)
        pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
        assert "".join(pieces) == whole.message.content
        assert len(pieces) > 1
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == whole.finish_reason
        assert len({chunk.id for chunk in chunks}) == 1
        if not seat.is_local:  # this helper takes no answer that was cut off
            assert seat.sent.stream
            with client.chat.completions.stream(**request) as helper:
                final = helper.get_final_completion()
            assert final.choices[0].message.content == whole.message.content


def test_system(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "system text", seat.kind):
        system: Any = [{"role": "system", "content": "Be terse."}]
        answer = client.chat.completions.create(model=seat.model, messages=system + HELLO, max_tokens=8)
        assert answer.choices[0].message.content
        if seat.is_local:
            assert count_prompt(client, seat, messages=system + HELLO) != count_prompt(
                client, seat, messages=HELLO
            )
        else:
            assert answer.choices[0].message.content == WORDS
            assert seat.sent.system == "Be terse."


def test_turns(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "several turns", seat.kind):
        turns: Any = [*ask("one"), {"role": "assistant", "content": "two"}, *ask("three")]
        answer = client.chat.completions.create(model=seat.model, messages=turns, max_tokens=8)
        assert answer.choices[0].message.content
        if seat.is_local:
            assert count_prompt(client, seat, messages=turns) > count_prompt(
                client, seat, messages=ask("three")
            )
        else:
            assert answer.choices[0].message.content == "three"
            assert seat.sent.texts == [("user", "one"), ("assistant", "two"), ("user", "three")]


def test_blank(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "blank texts", seat.kind):
        messages: Any = [
            {"role": "system", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": " "}, {"type": "text", "text": "one"}]},
            {"role": "assistant", "content": ""},
            *ask("two"),
        ]
        answer = client.chat.completions.create(model=seat.model, messages=messages, max_tokens=8)
        assert answer.choices[0].message.content
        assert seat.is_local or answer.choices[0].message.content.endswith("two")


def test_tool(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "tool call", seat.kind):
        answer = client.chat.completions.create(
            model=seat.model, messages=ask(CALL), tools=TOOLS, max_tokens=60
        )
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bern"})
        assert answer.choices[0].finish_reason == "tool_calls"
        assert seat.sent.tools == {"weather": CITY}


def test_streamed_tool(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "streamed tool call", seat.kind):
        request: Any = {"model": seat.model, "messages": ask(CALL), "tools": STRICT_TOOLS}
        with client.chat.completions.stream(**request) as stream:
            names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
            final = stream.get_final_completion()
        (call,) = final.choices[0].message.tool_calls or ()
        assert names == ["weather"]
        assert json.loads(call.function.arguments) == {"city": "Bern"}
        assert final.choices[0].finish_reason == "tool_calls"


def test_tool_loop(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "tool loop", seat.kind):
        messages: Any = ask(CALL)
        for city in ("Bern", "Oslo"):
            answer = client.chat.completions.create(model=seat.model, messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            (call,) = message.tool_calls or ()
            assert json.loads(call.function.arguments) == {"city": city}
            result = {"role": "tool", "tool_call_id": call.id, "content": f"sun in {city}"}
            messages += [message.to_dict(), result]
            if city == "Bern":
                last = client.chat.completions.create(model=seat.model, messages=messages, tools=TOOLS)
                assert last.choices[0].message.content == "sun in Bern"
                assert last.choices[0].finish_reason == "stop"
                messages += [last.choices[0].message.to_dict(), *ask('CALL weather {"city": "Oslo"}')]
        last = client.chat.completions.create(model=seat.model, messages=messages, tools=TOOLS)
        assert last.choices[0].message.content == "sun in Oslo"
        calls = [call for turn in seat.sent.turns for call in turn.calls]
        results = [result for turn in seat.sent.turns for result in turn.results]
        assert [call.arguments for call in calls] == [{"city": "Bern"}, {"city": "Oslo"}]
        assert [(result.id, result.text) for result in results] == [
            (calls[0].id, "sun in Bern"),
            (calls[1].id, "sun in Oslo"),
        ]


def test_parallel_tools(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "parallel tools", seat.kind):
        request: Any = {"model": seat.model, "tools": TOOLS}
        for stream in (False, True):
            if stream:
                with client.chat.completions.stream(**request, messages=ask(TWO_CALLS)) as streamed:
                    message: Any = streamed.get_final_completion().choices[0].message
            else:
                message = (
                    client.chat.completions.create(**request, messages=ask(TWO_CALLS)).choices[0].message
                )
            calls = message.tool_calls
            cities = [json.loads(call.function.arguments)["city"] for call in calls]
            assert cities == ["Bern", "Oslo"]
            assert len({call.id for call in calls}) == 2
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"sun in {city}"}
                for call, city in zip(calls, cities, strict=True)
            ]
            called = {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                        **({"extra_content": call.extra_content} if hasattr(call, "extra_content") else {}),
                    }
                    for call in calls
                ],
            }
            last = client.chat.completions.create(**request, messages=[*ask(TWO_CALLS), called, *results])
            assert last.choices[0].message.content == "sun in Bern; sun in Oslo"


def test_one_tool_at_a_time(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "one tool at a time", seat.kind):
        answer = client.chat.completions.create(
            model=seat.model, messages=ask(TWO_CALLS), tools=TOOLS, parallel_tool_calls=False
        )
        assert len(answer.choices[0].message.tool_calls or ()) == 1
        assert not seat.sent.parallel or seat.kind == "google"  # Google's API cannot say so


def test_forced_tool(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "forced tool", seat.kind):
        other = {"type": "function", "function": {"name": "other", "parameters": CITY}}
        named: Any = {"type": "function", "function": {"name": "weather"}}
        for choice in (named, "required"):
            answer = client.chat.completions.create(
                model=seat.model, messages=HELLO, tools=[*TOOLS, other], tool_choice=choice
            )
            (call,) = answer.choices[0].message.tool_calls or ()
            assert call.type == "function"
            assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bern"})
            assert seat.sent.choice == ("required" if choice == "required" else "weather")


def test_no_tools(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "no tools", seat.kind):
        answer = client.chat.completions.create(
            model=seat.model, messages=ask(CALL), tools=TOOLS, tool_choice="none", max_tokens=8
        )
        assert answer.choices[0].message.content
        assert not answer.choices[0].message.tool_calls
        assert seat.is_local or not seat.sent.tools or seat.sent.choice == "none"


def test_foreign_ids(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """A history that another endpoint began: its ids have characters and lengths that this one refuses."""
    with matrix.cell(CLIENT, "other endpoints' call ids", seat.kind):
        ids = ("functions.weather:0", "functions.weather:0", "call_" + "x" * 60)
        messages: Any = []
        for number, call_id in enumerate(ids):
            function = {"name": "weather", "arguments": json.dumps({"city": f"city {number}"})}
            called = {
                "role": "assistant",
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            }
            messages += [
                *ask(WORDS),
                called,
                {"role": "tool", "tool_call_id": call_id, "content": f"sun {number}"},
            ]
        request: Any = {"model": seat.model, "tools": TOOLS, "max_tokens": 60}
        answer = client.chat.completions.create(**request, messages=messages)
        assert answer.choices[0].message.content == "sun 2"
        calls = [call for turn in seat.sent.turns for call in turn.calls]
        results = [result for turn in seat.sent.turns for result in turn.results]
        assert [call.arguments["city"] for call in calls] == ["city 0", "city 1", "city 2"]
        assert [(result.id, result.text) for result in results] == [
            (call.id, f"sun {number}") for number, call in enumerate(calls)
        ]


def test_functions(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "legacy functions", seat.kind):
        functions: Any = [FUNCTION]
        answer = client.chat.completions.create(model=seat.model, messages=ask(CALL), functions=functions)
        call = answer.choices[0].message.function_call
        assert call is not None
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
        assert answer.choices[0].finish_reason == "function_call"
        assert seat.sent.tools == {"weather": CITY}
        history: Any = [
            *ask(CALL),
            {"role": "assistant", "content": None, "function_call": call.to_dict()},
            {"role": "function", "name": "weather", "content": "sun in Bern"},
        ]
        last = client.chat.completions.create(model=seat.model, messages=history, functions=functions)
        assert last.choices[0].message.content == "sun in Bern"


def test_structured(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "structured output", seat.kind):
        answer = client.chat.completions.parse(
            model=seat.model, messages=ask_for_city(), response_format=City, max_tokens=60, temperature=0
        )
        parsed = answer.choices[0].message.parsed
        assert parsed is not None
        with client.chat.completions.stream(
            model=seat.model, messages=ask_for_city(), response_format=City, max_tokens=60, temperature=0
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.parsed
        if not seat.is_local:
            assert parsed == final.choices[0].message.parsed == City(city="Bern")
            assert seat.sent.schema is not None
            assert seat.sent.schema["properties"].keys() == {"city"}


def test_json(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "JSON mode", seat.kind):
        answer = client.chat.completions.create(
            model=seat.model,
            messages=ask('Repeat this JSON: {"city": "Bern"}'),
            response_format={"type": "json_object"},
            max_tokens=80,
            temperature=0,
        )
        assert answer.choices[0].message.content
        if seat.kind == "anthropic":  # it has no such mode, so it is asked for in words
            assert "JSON" in seat.sent.system
        else:
            assert isinstance(json.loads(answer.choices[0].message.content), dict)
            assert seat.is_local or seat.sent.wants_json


def make_parts(part: dict[str, Any]) -> Any:
    return [{"role": "user", "content": [{"type": "text", "text": WORDS}, part]}]


def test_image(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "image", seat.kind):
        part = {"type": "image_url", "image_url": {"url": make_data_url("image/png", PNG)}}
        answer = client.chat.completions.create(model=seat.model, messages=make_parts(part))
        assert answer.choices[0].message.content == WORDS
        assert [(media.media_type, media.data) for media in seat.sent.media] == [("image/png", PNG)]


def test_pdf(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "PDF", seat.kind):
        file = {"filename": "a.pdf", "file_data": make_data_url("application/pdf", PDF)}
        answer = client.chat.completions.create(
            model=seat.model, messages=make_parts({"type": "file", "file": file})
        )
        assert answer.choices[0].message.content == WORDS
        assert [(media.media_type, media.data) for media in seat.sent.media] == [("application/pdf", PDF)]


def test_audio(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "audio", seat.kind):
        part = {"type": "input_audio", "input_audio": {"data": to_base64(WAV), "format": "wav"}}
        answer = client.chat.completions.create(model=seat.listener, messages=make_parts(part))
        assert answer.choices[0].message.content == WORDS
        assert [(media.media_type, media.data) for media in seat.sent.media] == [("audio/wav", WAV)]


def test_stop(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "stop texts", seat.kind):
        request: Any = {"model": seat.model, "messages": HELLO, "temperature": 0, "max_tokens": 30}
        whole = client.chat.completions.create(**request).choices[0].message.content or ""
        stop = whole.split()[2]
        answer = client.chat.completions.create(**request, stop=[stop, "never"])
        assert answer.choices[0].message.content == whole.partition(stop)[0]
        assert answer.choices[0].finish_reason == "stop"
        assert seat.is_local or seat.sent.stops == [stop, "never"]


def test_limit(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "token limit", seat.kind):
        for field in ("max_tokens", "max_completion_tokens"):
            limit: Any = {field: 2}
            answer = client.chat.completions.create(model=seat.model, messages=HELLO, **limit)
            assert answer.choices[0].finish_reason == "length"
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 2
            assert seat.is_local or seat.sent.max_tokens == 2


def test_usage(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "usage", seat.kind):
        answer = client.chat.completions.create(model=seat.model, messages=HELLO, max_tokens=8)
        usage = answer.usage
        assert usage is not None
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens > 0
        assert seat.is_local or (usage.prompt_tokens, usage.completion_tokens) == (4, 4)


def test_usage_in_a_stream(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "usage in a stream", seat.kind):
        request: Any = {"model": seat.model, "messages": HELLO, "max_tokens": 4, "stream": True}
        with client.chat.completions.create(**request, stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4
        assert [chunk for chunk in chunks[:-1] if chunk.usage is not None] == []
        with client.chat.completions.create(**request) as stream:
            assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_reasoning(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """The reasoning is shown where the API has a place for it; other chats count its tokens."""
    with matrix.cell(CLIENT, "reasoning", seat.kind):
        raw = client.chat.completions.with_raw_response.create(
            model=seat.thinker,
            messages=HELLO,
            reasoning_effort="low",
            max_completion_tokens=8 if seat.is_local else 5000,
        )
        answer = raw.parse()
        assert answer.choices[0].message.content
        if seat.is_local:  # it does not think
            assert "reasoning_effort" in find_hints(raw.headers)
            return
        assert seat.sent.thinks
        assert answer.usage is not None
        if seat.kind in ("openai", "responses", "google"):
            assert answer.usage.completion_tokens_details is not None
            assert answer.usage.completion_tokens_details.reasoning_tokens == 3
        else:
            assert answer.choices[0].message.to_dict()["reasoning_content"] == "let me see"


def test_reasoning_round_trip(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "reasoning round trip with tools", seat.kind):
        request: Any = {
            "model": seat.thinker,
            "tools": TOOLS,
            "reasoning_effort": "low",
            "max_completion_tokens": 5000,
        }
        first = client.chat.completions.create(**request, messages=ask(CALL)).choices[0].message
        (call,) = first.tool_calls or ()
        result = {"role": "tool", "tool_call_id": call.id, "content": "sun in Bern"}
        last = client.chat.completions.create(**request, messages=[*ask(CALL), first.to_dict(), result])
        assert last.choices[0].message.content == "sun in Bern"
        if seat.kind not in ("openai", "responses"):  # whose chats keep no reasoning
            assert seat.sent.turns[1].thoughts


def test_choices(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "several choices", seat.kind):
        request: Any = {"model": seat.model, "messages": HELLO, "n": 2}
        answer = client.chat.completions.create(**request)
        assert [choice.message.content for choice in answer.choices] == [WORDS, WORDS]
        assert [choice.index for choice in answer.choices] == [0, 1]
        with client.chat.completions.create(**request, stream=True) as stream:
            pieces = [choice for chunk in stream for choice in chunk.choices]
        for index in (0, 1):
            text = "".join(piece.delta.content or "" for piece in pieces if piece.index == index)
            assert text == WORDS
        assert seat.sent.count == 2


def test_logprobs(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "log probabilities", seat.kind):
        answer = client.chat.completions.create(
            model=seat.model, messages=HELLO, logprobs=True, top_logprobs=1, max_tokens=4
        )
        assert answer.choices[0].logprobs is not None
        tokens = answer.choices[0].logprobs.content or []
        assert len(tokens) == 4
        assert "".join(each.token for each in tokens) == answer.choices[0].message.content
        assert all(each.logprob <= 0 for each in tokens)


def test_seed(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "seed", seat.kind):
        request: Any = {"model": seat.model, "messages": HELLO, "seed": 7, "max_tokens": 8}
        raw = client.chat.completions.with_raw_response.create(**request)
        again = client.chat.completions.create(**request)
        assert again.choices[0].message.content == raw.parse().choices[0].message.content
        assert seat.is_local or seat.sent.seed == 7 or "seed" in find_hints(raw.headers)


def test_models(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "listed models", seat.kind):
        names = [model.id for model in client.models.list()]
        assert {seat.model, "any"} <= set(names)


def test_one_model(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "one model", seat.kind):
        assert client.models.retrieve(seat.model).id == seat.model
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("no-such-model")


def test_rate_limit(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """The grid's own limit of a key, and the vendor's."""
    with matrix.cell(CLIENT, "rate limit", seat.kind):
        limited = client.with_options(api_key=seat.limited_key)
        request: Any = {"model": seat.model, "messages": HELLO, "max_tokens": 2}
        with contextlib.suppress(openai.RateLimitError):
            limited.chat.completions.create(**request)
        with pytest.raises(openai.RateLimitError) as caught:
            limited.chat.completions.create(**request)
        assert int(caught.value.response.headers["retry-after"]) > 0
        if not seat.is_local:
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(model="limited", messages=HELLO)
            assert caught.value.type


def test_bad_request(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """What the grid itself refuses, and what the endpoint refuses."""
    with matrix.cell(CLIENT, "bad request", seat.kind):
        hot: Any = "hot"
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model=seat.model, messages=HELLO, temperature=hot, stream=stream
                )
            assert caught.value.param == "temperature"
            if not seat.is_local:
                with pytest.raises(openai.BadRequestError) as caught:
                    client.chat.completions.create(model="picky", messages=HELLO, stream=stream)
                assert "temperature" in str(caught.value)


def test_long(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "too long a context", seat.kind):
        model = seat.model if seat.is_local else "short-context"
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model=model, messages=ask("so it goes " * 1000), max_tokens=5, stream=stream
                )
            assert caught.value.code == "context_length_exceeded"
            assert not seat.is_local or re.search(r"\b3\d{3} tokens.*\b2048 tokens", caught.value.message)


def test_many(matrix: Matrix, seat: Seat) -> None:
    async def ask_one(client: openai.AsyncOpenAI, number: int) -> str:
        request: Any = {"model": seat.model, "messages": ask(f"number {number}"), "max_tokens": 4}
        if number % 2:
            answer = await client.chat.completions.create(**request)
            return answer.choices[0].message.content or ""
        text = ""
        async with await client.chat.completions.create(**request, stream=True) as stream:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
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
