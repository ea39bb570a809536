"""Messages of the `anthropic` package."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import beta_tool

from tests.compatibility.contents import (
    CALL,
    CITY,
    HELLO,
    PDF,
    PNG,
    TWO_CALLS,
    WORDS,
    City,
    ask,
    to_base64,
)
from tests.compatibility.matrix import Matrix, find_hints
from tests.compatibility.seats import Seat

CLIENT = "anthropic (Python), Messages"
TOOLS: Any = [{"name": "weather", "description": "The weather in a city", "input_schema": CITY}]
GREEDY: Any = {"temperature": 0}
"""A field that newer versions of the package have no argument for."""


@pytest.fixture(scope="module")
def client(seat: Seat) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=seat.url, api_key=seat.key, max_retries=0) as made:
        yield made


def count_input(client: anthropic.Anthropic, seat: Seat, **request: Any) -> int:
    """Return the tokens that the local model reads of a request: `input_tokens` has none from its cache."""
    usage = client.messages.create(model=seat.model, max_tokens=1, **request).usage
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def join_text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def find_calls(message: Any) -> list[Any]:
    return [block for block in message.content if block.type == "tool_use"]


def make_results(calls: list[Any]) -> Any:
    """Return the turn with a result for each call."""
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"sun in {call.input['city']}"}
            for call in calls
        ],
    }


def test_plain(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "plain answer", seat.kind):
        answer = client.messages.create(model=seat.model, max_tokens=8, messages=HELLO)
        assert (answer.type, answer.role) == ("message", "assistant")
        assert answer.id.startswith("msg_")
        assert join_text(answer)
        if not seat.is_local:
            assert (join_text(answer), answer.stop_reason) == (WORDS, "end_turn")
            assert seat.sent.texts == [("user", WORDS)]


def test_streamed(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "streamed answer", seat.kind):
        request: Any = {"model": seat.model, "max_tokens": 12, "messages": HELLO, "extra_body": GREEDY}
        whole = client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            pieces = list(stream.text_stream)
            final = stream.get_final_message()
        assert "".join(pieces) == join_text(final) == join_text(whole)
        assert len(pieces) > 1
        assert final.stop_reason == whole.stop_reason
        with client.messages.create(**request, stream=True) as events:
            kinds = [event.type for event in events]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_system(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "system text", seat.kind):
        system: Any = [{"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}}]
        answer = client.messages.create(model=seat.model, max_tokens=8, messages=HELLO, system=system)
        assert join_text(answer)
        if seat.is_local:
            with_system = count_input(client, seat, messages=HELLO, system=system)
            assert with_system != count_input(client, seat, messages=HELLO)
        else:
            assert seat.sent.system == "Be terse."


def test_turns(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "several turns", seat.kind):
        turns: Any = [*ask("one"), {"role": "assistant", "content": "two"}, *ask("three")]
        answer = client.messages.create(model=seat.model, max_tokens=8, messages=turns)
        assert join_text(answer)
        if seat.is_local:
            last = count_input(client, seat, messages=ask("three"))
            assert count_input(client, seat, messages=turns) > last
        else:
            assert join_text(answer) == "three"
            assert seat.sent.texts == [("user", "one"), ("assistant", "two"), ("user", "three")]


def test_blank(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    """Anthropic refuses blank texts itself; an assistant's turn may be empty at the end only."""
    with matrix.cell(CLIENT, "blank texts", seat.kind):
        content: Any = [{"type": "text", "text": " "}, {"type": "text", "text": "two"}]
        messages: Any = [{"role": "user", "content": content}]
        answer = client.messages.create(model=seat.model, max_tokens=8, messages=messages, system="")
        assert join_text(answer)
        assert seat.is_local or join_text(answer).endswith("two")


def test_tool(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "tool call", seat.kind):
        answer = client.messages.create(model=seat.model, max_tokens=60, messages=ask(CALL), tools=TOOLS)
        (call,) = find_calls(answer)
        assert (call.name, call.input) == ("weather", {"city": "Bern"})
        assert answer.stop_reason == "tool_use"
        assert seat.sent.tools == {"weather": CITY}


def test_streamed_tool(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "streamed tool call", seat.kind):
        with client.messages.stream(
            model=seat.model, max_tokens=60, messages=ask(CALL), tools=TOOLS
        ) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
        (call,) = find_calls(final)
        assert (call.name, call.input) == ("weather", {"city": "Bern"})
        assert "Bern" in "".join(pieces)
        assert final.stop_reason == "tool_use"


def test_tool_loop(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "tool loop", seat.kind):
        request: Any = {"model": seat.model, "max_tokens": 60, "tools": TOOLS}
        messages: Any = ask(CALL)
        for city in ("Bern", "Oslo"):
            answer = client.messages.create(**request, messages=messages)
            called = {"role": "assistant", "content": answer.content}
            messages = [*messages, called, make_results(find_calls(answer))]
            last = client.messages.create(**request, messages=messages)
            assert join_text(last) == f"sun in {city}"
            assert last.stop_reason == "end_turn"
            more = ask('CALL weather {"city": "Oslo"}')
            messages = [*messages, {"role": "assistant", "content": last.content}, *more]
        calls = [call for turn in seat.sent.turns for call in turn.calls]
        results = [result for turn in seat.sent.turns for result in turn.results]
        assert [call.arguments for call in calls] == [{"city": "Bern"}, {"city": "Oslo"}]
        assert [(result.id, result.text) for result in results] == [
            (calls[0].id, "sun in Bern"),
            (calls[1].id, "sun in Oslo"),
        ]


def test_parallel_tools(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "parallel tools", seat.kind):
        request: Any = {"model": seat.model, "max_tokens": 60, "tools": TOOLS}
        whole = client.messages.create(**request, messages=ask(TWO_CALLS))
        with client.messages.stream(**request, messages=ask(TWO_CALLS)) as stream:
            streamed = stream.get_final_message()
        for answer in (whole, streamed):
            calls = find_calls(answer)
            assert [call.input for call in calls] == [{"city": "Bern"}, {"city": "Oslo"}]
            called: Any = {"role": "assistant", "content": answer.content}
            messages = [*ask(TWO_CALLS), called, make_results(calls)]
            last = client.messages.create(**request, messages=messages)
            assert join_text(last) == "sun in Bern; sun in Oslo"


def test_one_tool_at_a_time(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "one tool at a time", seat.kind):
        answer = client.messages.create(
            model=seat.model,
            max_tokens=60,
            messages=ask(TWO_CALLS),
            tools=TOOLS,
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        )
        assert len(find_calls(answer)) == 1
        assert not seat.sent.parallel or seat.kind == "google"  # Google's API cannot say so


def test_forced_tool(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "forced tool", seat.kind):
        choices: Any = ({"type": "tool", "name": "weather"}, {"type": "any"})
        for choice in choices:
            answer = client.messages.create(
                model=seat.model, max_tokens=60, messages=HELLO, tools=TOOLS, tool_choice=choice
            )
            (call,) = find_calls(answer)
            assert (call.name, call.input) == ("weather", {"city": "Bern"})


def test_no_tools(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "no tools", seat.kind):
        answer = client.messages.create(
            model=seat.model, max_tokens=8, messages=ask(CALL), tools=TOOLS, tool_choice={"type": "none"}
        )
        assert join_text(answer)
        assert not find_calls(answer)


def test_foreign_ids(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    """A history that another endpoint began: its ids are longer than others take."""
    with matrix.cell(CLIENT, "other endpoints' call ids", seat.kind):
        messages: Any = []
        for number, call_id in enumerate(("toolu_" + "x" * 80, "call_1")):
            called = {
                "type": "tool_use",
                "id": call_id,
                "name": "weather",
                "input": {"city": f"city {number}"},
            }
            result = {"type": "tool_result", "tool_use_id": call_id, "content": f"sun {number}"}
            messages += [
                *ask(WORDS),
                {"role": "assistant", "content": [called]},
                {"role": "user", "content": [result]},
                {"role": "assistant", "content": "so it is"},
            ]
        request: Any = {"model": seat.model, "tools": TOOLS, "max_tokens": 60}
        answer = client.messages.create(**request, messages=messages[:-1])
        assert join_text(answer) == "sun 1"
        calls = [call for turn in seat.sent.turns for call in turn.calls]
        results = [result for turn in seat.sent.turns for result in turn.results]
        assert [call.arguments["city"] for call in calls] == ["city 0", "city 1"]
        assert [result.id for result in results] == [call.id for call in calls]


def test_long_names(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    """Two tools whose names differ after the 64 characters that other APIs take."""
    with matrix.cell(CLIENT, "long tool names", seat.kind):
        names = [f"{'weather_' * 9}{end}" for end in ("of_today", "of_tomorrow")]
        tools: Any = [{"name": name, "input_schema": CITY} for name in names]
        for name in names:
            answer = client.messages.create(
                model=seat.model,
                max_tokens=60,
                messages=HELLO,
                tools=tools,
                tool_choice={"type": "tool", "name": name},
            )
            (call,) = find_calls(answer)
            assert (call.name, call.input) == (name, {"city": "Bern"})
            assert len(seat.sent.tools) == 2


def test_runner(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    """The package's own loop, which calls Python functions; it is a beta."""
    cities = []

    @beta_tool
    def weather(city: str) -> str:
        """Get the weather in a city.

        Args:
            city: The city.
        """
        cities.append(city)
        return f"sun in {city}"

    with matrix.cell(CLIENT, "tool runner", seat.kind):
        runner = client.beta.messages.tool_runner(
            model=seat.model, max_tokens=60, messages=ask(TWO_CALLS), tools=[weather]
        )
        last = runner.until_done()
        assert cities == ["Bern", "Oslo"]
        assert join_text(last) == "sun in Bern; sun in Oslo"


def test_structured(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "structured output", seat.kind):
        request: Any = {"model": seat.model, "max_tokens": 60, "messages": ask('{"city": "Bern"}')}
        request["extra_body"] = GREEDY
        answer = client.messages.parse(**request, output_format=City)
        with client.messages.stream(**request, output_format=City) as stream:
            final = stream.get_final_message()
        assert answer.parsed_output is not None
        assert final.parsed_output == answer.parsed_output
        if not seat.is_local:
            assert answer.parsed_output == City(city="Bern")
            assert seat.sent.schema is not None
            assert seat.sent.schema["properties"].keys() == {"city"}


def make_content(block: dict[str, Any]) -> Any:
    return [{"role": "user", "content": [block, {"type": "text", "text": WORDS}]}]


def make_source(media_type: str, data: bytes) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": to_base64(data)}


def test_image(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "image", seat.kind):
        block = {"type": "image", "source": make_source("image/png", PNG)}
        answer = client.messages.create(model=seat.model, max_tokens=8, messages=make_content(block))
        assert join_text(answer) == WORDS
        assert [(media.media_type, media.data) for media in seat.sent.media] == [("image/png", PNG)]


def test_pdf(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "PDF", seat.kind):
        block = {"type": "document", "source": make_source("application/pdf", PDF), "title": "a"}
        answer = client.messages.create(model=seat.model, max_tokens=8, messages=make_content(block))
        assert join_text(answer) == WORDS
        assert [(media.media_type, media.data) for media in seat.sent.media] == [("application/pdf", PDF)]


def test_stop(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "stop texts", seat.kind):
        request: Any = {"model": seat.model, "max_tokens": 30, "messages": HELLO, "extra_body": GREEDY}
        whole = join_text(client.messages.create(**request))
        stop = whole.split()[2]
        answer = client.messages.create(**request, stop_sequences=[stop, "never"])
        assert join_text(answer) == whole.partition(stop)[0]
        # other APIs do not say which text it was
        stated = (answer.stop_reason, answer.stop_sequence)
        assert stated in (("stop_sequence", stop), ("end_turn", None))
        assert stated[1] or seat.kind != "anthropic"
        assert seat.is_local or seat.sent.stops == [stop, "never"]


def test_limit(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "token limit", seat.kind):
        answer = client.messages.create(model=seat.model, max_tokens=2, messages=HELLO)
        assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 2)
        assert seat.is_local or seat.sent.max_tokens == 2


def test_usage(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "usage", seat.kind):
        answer = client.messages.create(model=seat.model, max_tokens=4, messages=HELLO)
        assert answer.usage.input_tokens > 0
        assert answer.usage.output_tokens == 4
        assert seat.is_local or answer.usage.input_tokens == 4


def test_usage_in_a_stream(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "usage in a stream", seat.kind):
        with client.messages.stream(model=seat.model, max_tokens=4, messages=HELLO) as stream:
            begun = next(event for event in stream if event.type == "message_start")
            final = stream.get_final_message()
        assert begun.message.usage.input_tokens > 0
        assert final.usage.output_tokens == 4
        assert seat.is_local or final.usage.input_tokens == 4


def test_count(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "token count", seat.kind):
        few = client.messages.count_tokens(model=seat.model, messages=HELLO).input_tokens
        more = client.messages.count_tokens(
            model=seat.model, messages=HELLO, tools=TOOLS, system="Be terse."
        ).input_tokens
        assert 0 < few < more


THINKING: Any = {"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 1024}}


def test_reasoning(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    """The thinking is shown, where the endpoint shows it; else the answer says that it was only a hint."""
    with matrix.cell(CLIENT, "reasoning", seat.kind):
        request: Any = {"model": seat.thinker, "messages": HELLO, **THINKING}
        if seat.is_local:  # it does not think, and answers until its limit
            request["max_tokens"] = 8
        raw = client.messages.with_raw_response.create(**request)
        answer = raw.parse()
        hints = [hint for hint in find_hints(raw.headers) if hint.startswith("thinking")]
        assert hints or seat.sent.thinks
        if seat.kind not in ("anthropic", "engine", "google"):  # the others do not show it
            return
        assert join_text(answer) == WORDS
        with client.messages.stream(**request) as stream:
            final = stream.get_final_message()
        for each in (answer, final):
            (thought,) = [block for block in each.content if block.type == "thinking"]
            assert thought.thinking == "let me see"
            assert thought.signature


def test_reasoning_round_trip(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "reasoning round trip with tools", seat.kind):
        request: Any = {"model": seat.thinker, "tools": TOOLS, **THINKING}
        first = client.messages.create(**request, messages=ask(CALL))
        calls = find_calls(first)
        assert [call.input for call in calls] == [{"city": "Bern"}]
        called: Any = {"role": "assistant", "content": first.content}
        last = client.messages.create(**request, messages=[*ask(CALL), called, make_results(calls)])
        assert join_text(last) == "sun in Bern"
        if seat.kind not in ("openai", "responses"):  # whose chats keep no reasoning
            assert seat.sent.turns[1].thoughts


def test_models(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "listed models", seat.kind):
        assert seat.model in {model.id for model in client.models.list()}


def test_one_model(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "one model", seat.kind):
        assert client.models.retrieve(seat.model).id == seat.model
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("no-such-model")


def test_rate_limit(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "rate limit", seat.kind):
        limited = client.with_options(api_key=seat.limited_key)
        request: Any = {"model": seat.model, "max_tokens": 2, "messages": HELLO}
        with contextlib.suppress(anthropic.RateLimitError):
            limited.messages.create(**request)
        with pytest.raises(anthropic.RateLimitError) as caught:
            limited.messages.create(**request)
        assert int(caught.value.response.headers["retry-after"]) > 0
        assert caught.value.type == "rate_limit_error"


def test_bad_request(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "bad request", seat.kind):
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError) as caught:
                client.messages.create(
                    model=seat.model,
                    max_tokens=2,
                    messages=HELLO,
                    stream=stream,
                    extra_body={"temperature": "hot"},
                )
            assert caught.value.type == "invalid_request_error"
            body: Any = caught.value.body
            assert body["error"]["param"] == "temperature"
            if not seat.is_local:
                with pytest.raises(anthropic.BadRequestError) as caught:
                    client.messages.create(model="picky", max_tokens=2, messages=HELLO, stream=stream)
                assert "temperature" in str(caught.value)


def test_long(matrix: Matrix, seat: Seat, client: anthropic.Anthropic) -> None:
    with matrix.cell(CLIENT, "too long a context", seat.kind):
        model = seat.model if seat.is_local else "short-context"
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError) as caught:
                client.messages.create(
                    model=model, max_tokens=5, messages=ask("so it goes " * 1000), stream=stream
                )
            assert caught.value.type == "invalid_request_error"
            body: Any = caught.value.body
            assert body["error"]["code"] == "context_length_exceeded"
            said = body["error"]["message"]
            assert not seat.is_local or re.search(r"\b3\d{3} tokens.*\b2048 tokens", said)


def test_many(matrix: Matrix, seat: Seat) -> None:
    async def ask_one(client: anthropic.AsyncAnthropic, number: int) -> str:
        request: Any = {"model": seat.model, "max_tokens": 4, "messages": ask(f"number {number}")}
        if number % 2:
            return join_text(await client.messages.create(**request))
        async with client.messages.stream(**request) as stream:
            return join_text(await stream.get_final_message())

    async def ask_all() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=seat.url, api_key=seat.key, max_retries=0) as client:
            return await asyncio.gather(
                *(ask_one(client, number) for number in range(4 if seat.is_local else 12))
            )

    count = 4 if seat.is_local else 12
    with matrix.cell(CLIENT, "many at once", seat.kind):
        texts = asyncio.run(ask_all())
        assert all(texts)
        assert seat.is_local or texts == [f"number {number}" for number in range(count)]
