"""Failures of an endpoint, in each API format, whole and streamed, and the error that each becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gridq.errors import GridError, SeatDegraded, SeatRateLimited, SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, StageCall
from tests.fakes.http_server import Handler, LocalServer
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability

WORDS = [{"role": "user", "content": "so it goes on"}]
APIS = ("openai", "anthropic", "google")
TYPES = {401: "authentication_error", 402: "billing_error", 429: "rate_limit_error", 529: "overloaded_error"}
BEGUN: dict[str, list[dict[str, Any]]] = {
    "openai": [{"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "so "}}]}],
    "anthropic": [
        {"type": "message_start", "message": {"id": "1", "role": "assistant", "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so "}},
    ],
    "google": [{"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "so "}]}}]}],
}


class Failing(LocalServer):
    """A server whose `play` answers each request."""

    def __init__(self) -> None:
        self.play: Callable[[Handler], None] = lambda handler: None
        super().__init__(_handler(self))


def _handler(state: Failing) -> type[Handler]:
    class Plays(Handler):
        def do_POST(self) -> None:
            self.body()
            state.play(self)

    return Plays


@pytest.fixture(scope="module")
def failing() -> Iterator[Failing]:
    with Failing() as server:
        yield server


@pytest.fixture(scope="module")
def profiles(failing: Failing) -> Iterator[dict[str, LlmProfile]]:
    opened = {}
    for api in APIS:
        profile = opened[api] = LlmProfile()
        table = {"name": "s", "url": f"{failing.url}/{api}", "api": api, "models": [{"name": "m"}]}
        (offer,) = profile.probe([{**table, "allow_loopback": True}]).found
        profile.open(LlmCapability.model_validate(offer.capability), offer.config)
    yield opened
    for profile in opened.values():
        profile.close()


def refusal(api: str, status: int) -> dict[str, Any]:
    """Return a refusal in the vendor's format."""
    if api == "anthropic":
        return {"type": "error", "error": {"type": TYPES.get(status, "api_error"), "message": "no"}}
    if api == "google":
        return {"error": {"code": status, "message": "no", "status": "SOME_STATUS"}}
    return {"error": {"message": "no", "type": "some_error", "param": None, "code": None}}


def ask(profile: LlmProfile, streaming: bool) -> tuple[GridError, list[Any]]:
    pieces: list[Any] = []
    effects = [Effect(effect="Llm", model="m")]
    call = StageCall(id="s", name="s", path="$", implementation="llm:complete", effects=effects)
    with pytest.raises(GridError) as caught:
        profile.run(call, "so it goes on", StageContext(emit=pieces.append if streaming else None))
    return caught.value, pieces


@pytest.mark.parametrize(
    ("status", "headers", "kind", "after"),
    [
        (401, {}, SeatDegraded, None),
        (402, {}, SeatDegraded, None),
        (429, {}, SeatRateLimited, None),
        (429, {"Retry-After": "7"}, SeatRateLimited, 7),
        (429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m2s"}, SeatRateLimited, 62),
        (500, {}, SeatUnavailable, None),
        (529, {"Retry-After": "2"}, SeatUnavailable, 2),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_refusal_becomes_its_error(
    failing: Failing,
    profiles: dict[str, LlmProfile],
    api: str,
    streaming: bool,
    status: int,
    headers: dict[str, str],
    kind: type[GridError],
    after: float | None,
):
    failing.play = lambda handler: handler.answer(status, refusal(api, status), headers)
    error, pieces = ask(profiles[api], streaming)
    assert type(error) is kind
    assert (error.details["status"], error.details["reason"]) == (status, "no")
    assert error.details.get("retry_after") == after
    assert pieces == []


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("broken", [b"", b"data: {not json\n\n", b"data: 5\n\n"])
@pytest.mark.parametrize("api", APIS)
def test_a_broken_stream_is_the_seats_fault(
    failing: Failing, profiles: dict[str, LlmProfile], api: str, broken: bytes, begun: bool
):
    def play(handler: Handler) -> None:
        handler.begin_stream()
        for event in BEGUN[api] if begun else ():
            handler.chunk(f"data: {json.dumps(event)}\n\n".encode())
        if broken:
            handler.chunk(broken)
        handler.close_connection = True

    failing.play = play
    error, pieces = ask(profiles[api], True)
    assert type(error) is SeatUnavailable
    assert pieces == (["so "] if begun else [])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b"{}", b'{"choices": 5, "content": 5, "candidates": 5}']
)
def test_a_malformed_answer_is_the_seats_fault(
    failing: Failing, profiles: dict[str, LlmProfile], api: str, answer: bytes
):
    failing.play = lambda handler: handler.answer(200, answer)
    error, _ = ask(profiles[api], False)
    assert type(error) is SeatUnavailable


DEEP = b'{"choices": [{"message": {"content": "a"}}], "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def test_an_answer_nested_too_deeply_is_the_seats_fault(failing: Failing, profiles: dict[str, LlmProfile]):
    failing.play = lambda handler: handler.answer(200, DEEP)
    error, _ = ask(profiles["openai"], False)
    assert type(error) is SeatUnavailable
    assert error.details["reason"] == "it sent JSON that is nested too deeply"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"message": "no", "code": "insufficient_quota"}, SeatDegraded),
        ({"message": "no", "code": 429}, SeatRateLimited),
        ({"message": "no", "code": "502"}, SeatUnavailable),
        ({"message": "no", "type": "authentication_error"}, SeatDegraded),
        ("no", SeatUnavailable),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_an_error_with_status_200_becomes_its_error(
    failing: Failing, profiles: dict[str, LlmProfile], api: str, streaming: bool, body: Any,
    kind: type[GridError],
):  # fmt: skip
    failing.play = lambda handler: handler.answer(200, {"error": body})
    error, _ = ask(profiles[api], streaming)
    assert (type(error), error.details["reason"]) == (kind, "no")


@pytest.mark.parametrize("status", [204, 206, 600])
def test_an_unexpected_status_is_the_seats_fault(
    failing: Failing, profiles: dict[str, LlmProfile], status: int
):
    failing.play = lambda handler: handler.answer(status, b"")
    error, _ = ask(profiles["openai"], False)
    assert (type(error), error.details["status"]) == (SeatUnavailable, status)


@pytest.mark.parametrize("streaming", [False, True])
def test_numbers_that_are_not_json_are_read_as_null(
    failing: Failing, profiles: dict[str, LlmProfile], streaming: bool
):
    whole = (
        b'\xef\xbb\xbf{"choices": [{"index": 0, "finish_reason": "stop", "logprobs": '
        b'{"content": [NaN, -Infinity, 1e999, 1.5]}, "message": {"role": "assistant", "content": "a"}}]}'
    )
    failing.play = lambda handler: handler.answer(200, whole)
    request = {"api": "openai", "path": "chat/completions", "body": {"model": "m", "messages": WORDS}}
    effects = [Effect(effect="Llm", model="m")]
    call = StageCall(id="s", name="s", path="$", implementation="llm:api_request", effects=effects)
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append if streaming else None)
    answer: Any = profiles["openai"].run(call, request, context)
    assert answer["choices"][0]["logprobs"] == {"content": [None, None, None, 1.5]}
    assert not streaming or pieces[0]["choices"][0]["logprobs"] == {"content": [None, None, None, 1.5]}
