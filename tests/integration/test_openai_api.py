"""The client of the OpenAI API format with a fake server, which also fails in many ways."""

from __future__ import annotations

import email.utils
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.errors import (
    GridError,
    JobCancelled,
    RequestRefused,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall, Usage
from tests.fakes.openai_server import KEY, OpenAIServer
from workers.model_apis.openai.client import OpenAIClient
from workers.model_apis.stage_runner import run_request
from workers.model_apis.stages import parse_request


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


@pytest.fixture
def api(server: OpenAIServer) -> Iterator[OpenAIClient]:
    made = OpenAIClient(server.url, KEY)
    yield made
    made.close()


def ask(implementation: str, value: Any) -> Any:
    return parse_request(StageCall(id="s", name="s", path="$", implementation=implementation), value)


CHAT = ask("llm:chat", {"messages": [{"role": "user", "content": "so it goes on"}]})


def test_chat_whole(api: OpenAIClient):
    context = StageContext()
    output = run_request(CHAT, "echo", context, api)
    assert output == {"role": "assistant", "content": "so it goes on ", "finish_reason": "stop"}
    assert context.usage == Usage(tokens_in=4, tokens_out=4)


def test_chat_streamed_gives_each_piece_and_the_usage_of_the_last_chunk(api: OpenAIClient):
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)
    output = run_request(CHAT, "echo", context, api)
    assert pieces == ["so ", "it ", "goes ", "on "]
    assert output == {"role": "assistant", "content": "so it goes on ", "finish_reason": "stop"}
    assert context.usage == Usage(tokens_in=4, tokens_out=4)


def test_complete_uses_the_chat_endpoint(api: OpenAIClient, server: OpenAIServer):
    output = run_request(
        ask("llm:complete", {"prompt": "a b", "system": "be brief"}), "echo", StageContext(), api
    )
    assert output == "a b "
    assert server.requests[0]["path"] == "/v1/chat/completions"
    assert server.requests[0]["body"]["messages"][0] == {"role": "system", "content": "be brief"}


def test_complete_raw_uses_the_completions_endpoint(api: OpenAIClient, server: OpenAIServer):
    output = run_request(ask("llm:complete", {"prompt": "a b", "raw": True}), "echo", StageContext(), api)
    assert output == "a b "
    assert server.requests[0]["path"] == "/v1/completions"
    assert "raw" not in server.requests[0]["body"]


def test_embeddings_come_in_the_order_of_the_input(api: OpenAIClient):
    context = StageContext()
    output = run_request(ask("llm:embed", {"input": ["a", "bcd"]}), "echo", context, api)
    assert output == [[1.0, 1.0], [3.0, 1.0]]
    assert context.usage.tokens_in == 2
    assert run_request(ask("llm:embed", "abcd"), "echo", StageContext(), api) == [4.0, 1.0]


def test_unknown_fields_pass_through_whole(api: OpenAIClient, server: OpenAIServer):
    request = ask("llm:complete", {"prompt": "x", "seed": 7, "vendor_thing": {"deep": [1, None]}})
    run_request(request, "echo", StageContext(), api)
    assert server.requests[0]["body"]["vendor_thing"] == {"deep": [1, None]}
    assert server.requests[0]["body"]["seed"] == 7


def test_tool_calls_are_assembled(api: OpenAIClient):
    output = run_request(CHAT, "tools", StageContext(emit=lambda piece: None), api)
    assert output["finish_reason"] == "tool_calls"
    assert output["tool_calls"] == [
        {
            "type": "function",
            "id": output["tool_calls"][0]["id"],  # the grid's own
            "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
        }
    ]


def test_characters_split_over_chunks_are_joined(api: OpenAIClient):
    pieces: list[Any] = []
    request = ask("llm:complete", "Zürich ☂ 東京")
    output = run_request(request, "ragged", StageContext(emit=pieces.append), api)
    assert output == "Zürich ☂ 東京 "
    assert pieces == ["Zürich ", "☂ ", "東京 "]


def test_a_whole_answer_to_a_streaming_request_is_one_piece(api: OpenAIClient):
    pieces: list[Any] = []
    output = run_request(CHAT, "whole", StageContext(emit=pieces.append), api)
    assert output["content"] == "so it goes on "
    assert pieces == ["so it goes on "]


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("status-400", StageError),
        ("status-404", RequestRefused),
        ("status-413", StageError),
        ("status-422", StageError),
        ("status-401", SeatDegraded),
        ("status-402", SeatDegraded),
        ("status-403", RequestRefused),
        ("status-307", SeatDegraded),
        ("status-429", SeatRateLimited),
        ("status-429-insufficient_quota", SeatDegraded),
        ("status-408", SeatUnavailable),
        ("status-500", SeatUnavailable),
        ("status-503", SeatUnavailable),
        ("status-529", SeatUnavailable),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_refusal_becomes_its_error(api: OpenAIClient, model: str, error: type[GridError], streaming: bool):
    context = StageContext(emit=(lambda piece: None) if streaming else None)
    with pytest.raises(error) as caught:
        run_request(CHAT, model, context, api)
    assert type(caught.value) is error
    assert caught.value.reason == "refused with " + model.split("-")[1]


def test_retry_after_in_seconds_and_as_a_date(api: OpenAIClient, server: OpenAIServer):
    server.retry_after = "7"
    with pytest.raises(SeatRateLimited) as caught:
        run_request(CHAT, "status-429", StageContext(), api)
    assert caught.value.details["retry_after"] == 7
    server.retry_after = email.utils.formatdate(time.time() + 100, usegmt=True)
    with pytest.raises(SeatRateLimited) as caught:
        run_request(CHAT, "status-429", StageContext(), api)
    assert 90 < caught.value.details["retry_after"] <= 100


def test_a_key_echoed_by_the_endpoint_is_redacted():
    with OpenAIServer(key="another") as server:
        api = OpenAIClient(server.url, KEY)
        with pytest.raises(SeatDegraded) as caught:
            run_request(CHAT, "echo", StageContext(), api)
        api.close()
    assert "Incorrect API key provided: ***" in str(caught.value)
    assert KEY not in caught.value.to_json()


@pytest.mark.parametrize(("model", "streaming"), [("slow", True), ("silent", True), ("silent", False)])
def test_cancel_closes_the_connection(api: OpenAIClient, server: OpenAIServer, model: str, streaming: bool):
    context = StageContext(emit=(lambda piece: None) if streaming else None)
    threading.Thread(target=lambda: server.started.wait(5) and context.cancel()).start()
    with pytest.raises(JobCancelled):
        run_request(CHAT, model, context, api)
    assert server.disconnected.wait(1), "the endpoint continues to generate"


def test_a_silent_endpoint_times_out(server: OpenAIServer):
    api = OpenAIClient(server.url, silence=0.2)
    with pytest.raises(SeatUnavailable, match="in time"):
        run_request(CHAT, "silent", StageContext(), api)
    api.close()


def test_an_unreachable_endpoint_is_the_seats_fault():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = OpenAIClient(f"http://127.0.0.1:{port}/v1")
    with pytest.raises(SeatUnavailable, match="cannot be reached"):
        run_request(CHAT, "echo", StageContext(), api)
    api.close()


def test_connections_are_reused(api: OpenAIClient, server: OpenAIServer):
    for streaming in (False, True, True, False):
        run_request(CHAT, "echo", StageContext(emit=(lambda piece: None) if streaming else None), api)
    assert len(server.connections) == 1


def test_close_ends_running_calls_and_the_next_one_reconnects(api: OpenAIClient, server: OpenAIServer):
    threading.Thread(target=lambda: server.started.wait(5) and api.close()).start()
    with pytest.raises(SeatUnavailable, match="closed"):
        run_request(CHAT, "silent", StageContext(), api)
    assert run_request(CHAT, "echo", StageContext(), api)["content"] == "so it goes on "


def test_many_calls_at_once(api: OpenAIClient):
    outputs: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: outputs.append(run_request(CHAT, "echo", StageContext(), api)["content"])
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outputs == ["so it goes on "] * 16
