"""The endpoints of chaos runs behave as their modes say, and their file has each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.chaos.endpoints.calls import (
    MODEL,
    SERIAL_BASE,
    Call,
    draw_usage,
    make_answer,
    make_system_text,
    parse_system_text,
    read_calls,
)
from tests.chaos.endpoints.control import EndpointProcess
from tests.chaos.endpoints.server import DRIP_SECONDS, LATE_SECONDS, MODES
from tests.waiting import wait_for

A, B = "m1.model", "m2.model"


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointProcess]:
    with EndpointProcess(
        tmp_path_factory.mktemp("calls") / "calls", {A: "openai", B: "anthropic"}
    ) as process:
        yield process


@pytest.fixture(autouse=True)
def healthy(endpoints: EndpointProcess) -> Iterator[None]:
    yield
    for name in (A, B):
        endpoints.set_mode(name, "healthy")


def ask(
    endpoints: EndpointProcess, source: str, *, stream: bool = False, timeout: float = 10.0
) -> httpx.Response:
    body: dict[str, Any] = {
        "model": MODEL,
        "stream": stream,
        "messages": [
            {"role": "system", "content": make_system_text(source, "s0")},
            {"role": "user", "content": "why?"},
        ],
    }
    return httpx.post(f"{endpoints.get_url(A)}/chat/completions", json=body, timeout=timeout, trust_env=False)


def find_call(endpoints: EndpointProcess, source: str) -> Call:
    """Return the only call for `source`, once it has ended."""

    def read() -> Call:
        (call,) = [each for each in read_calls(endpoints.file).values() if each.source == source]
        return call

    return wait_for(read, true=lambda call: call.ended)


def test_a_healthy_endpoint_answers_and_names_the_call_in_its_usage(endpoints: EndpointProcess) -> None:
    answer = ask(endpoints, "whole").json()
    assert answer["choices"][0]["message"]["content"] == make_answer("s0", "why?")
    call = find_call(endpoints, "whole")
    assert call.answered
    assert answer["usage"]["prompt_tokens"] == SERIAL_BASE + call.serial
    assert answer["usage"]["completion_tokens"] == draw_usage(call.serial).tokens_out
    assert "[DONE]" in ask(endpoints, "streamed", stream=True).text
    assert find_call(endpoints, "streamed").answered


def test_messages_are_answered_in_their_format(endpoints: EndpointProcess) -> None:
    body = {
        "model": MODEL,
        "max_tokens": 9,
        "system": [{"type": "text", "text": make_system_text("messages", "s0")}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "why?"}]}],
    }
    answer = httpx.post(f"{endpoints.get_url(B)}/messages", json=body, trust_env=False).json()
    assert answer["content"][0]["text"] == make_answer("s0", "why?")
    assert answer["usage"]["input_tokens"] == SERIAL_BASE + find_call(endpoints, "messages").serial


def test_a_dead_endpoint_refuses_connections_and_comes_back_on_its_port(endpoints: EndpointProcess) -> None:
    endpoints.set_mode(A, "dead")
    with pytest.raises(httpx.ConnectError):
        ask(endpoints, "dead")
    endpoints.set_mode(A, "healthy")
    assert ask(endpoints, "back").status_code == 200


@pytest.mark.parametrize("status", MODES["refusing"])
def test_a_refusing_endpoint_answers_its_status_at_once(endpoints: EndpointProcess, status: str) -> None:
    endpoints.set_mode(A, "refusing", status)
    answer = ask(endpoints, f"refused {status}")
    assert answer.status_code == int(status)
    assert ("retry-after" in answer.headers) is (status == "429")
    assert find_call(endpoints, f"refused {status}").outcome == "refused"


@pytest.mark.parametrize(("how", "seconds"), [("late", LATE_SECONDS), ("drip", 3 * DRIP_SECONDS)])
def test_a_slow_endpoint_answers_completely(endpoints: EndpointProcess, how: str, seconds: float) -> None:
    endpoints.set_mode(A, "slow", how)
    begun = time.monotonic()
    assert "[DONE]" in ask(endpoints, how, stream=True).text
    assert time.monotonic() - begun >= seconds
    assert find_call(endpoints, how).answered


def test_a_flapping_endpoint_answers_each_second_call(endpoints: EndpointProcess) -> None:
    endpoints.set_mode(A, "flapping", "503")
    assert [ask(endpoints, f"flap {number}").status_code for number in range(4)] == [503, 200, 503, 200]


@pytest.mark.parametrize(
    ("how", "outcome"), [("head", "refused"), ("body", "cut"), ("stream", "cut"), ("reset", "refused")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_half_open_endpoint_breaks_off(
    endpoints: EndpointProcess, how: str, outcome: str, stream: bool
) -> None:
    endpoints.set_mode(A, "half-open", how)
    with pytest.raises(httpx.TransportError):
        ask(endpoints, f"{how} {stream}", stream=stream)
    call = find_call(endpoints, f"{how} {stream}")
    assert (call.outcome, call.complete) == (outcome, False)


def test_a_silent_endpoint_answers_nothing_until_its_mode_changes(endpoints: EndpointProcess) -> None:
    change = endpoints.set_mode(A, "half-open", "silent")
    with pytest.raises(httpx.ReadTimeout):
        ask(endpoints, "left", timeout=0.3)
    assert find_call(endpoints, "left").outcome == "silent"
    timer = threading.Timer(0.5, lambda: endpoints.restore(A, change))
    timer.start()
    with pytest.raises(httpx.TransportError) as caught:
        ask(endpoints, "kept")
    timer.join()
    assert not isinstance(caught.value, httpx.TimeoutException)


def test_only_the_last_change_is_undone(endpoints: EndpointProcess) -> None:
    first = endpoints.set_mode(A, "refusing", "503")
    second = endpoints.set_mode(A, "refusing", "529")
    assert not endpoints.restore(A, first)
    assert ask(endpoints, "second").status_code == 529
    assert endpoints.restore(A, second)
    spans = [span for span in endpoints.spans if span.endpoint == A][-3:]
    assert [(span.mode, span.how) for span in spans] == [
        ("refusing", "503"),
        ("refusing", "529"),
        ("healthy", ""),
    ]
    assert spans[0].ended == spans[1].begun


def test_another_text_names_no_call() -> None:
    assert parse_system_text(make_system_text("j", "s1")) == ("j", "s1")
    with pytest.raises(ValueError, match="not a call"):
        parse_system_text("You are helpful.")
