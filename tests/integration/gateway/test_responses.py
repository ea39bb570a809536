"""OpenAI's Responses by the official client: at seats that have them, and translated at all others."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from gridq.config.settings import Settings
from gridq.gateway.grid.connection import GridConnection
from gridq.limits import api_keys
from gridq.protocol.response_needs import find_vendor_part
from gridq.protocol.response_object import parse_response_id
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests.fakes import anthropic_server, gemini_server, openai_server, responses_server
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.client_types import RESPONSE, RESPONSE_EVENT, valid
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.http_server import ModelServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.responses_server import ResponsesServer
from tests.gateways import serving
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

WORDS = "so it goes on"
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
MODELS = [
    *("echo", "tools", "reasoning", "thinking", "slow", "cut", "error-late", "failed", "status-400"),
    *("status-500", "paced", "agent", "silent"),
]
SEATS = {
    "openai": (OpenAIServer, openai_server.KEY, {"api": "openai"}),
    "anthropic": (AnthropicServer, anthropic_server.KEY, {"api": "anthropic"}),
    "google": (GeminiServer, gemini_server.KEY, {"api": "google"}),
    "responses": (ResponsesServer, responses_server.KEY, {"api": "openai", "responses": True}),
}
THINKING_MODELS = {
    "openai": "reasoning",
    "anthropic": "thinking",
    "google": "thinking",
    "responses": "reasoning",
}


@dataclass(frozen=True)
class Seat:
    """A seat of one kind behind a gateway."""

    kind: str
    url: str
    api: ModelServer
    client: openai.OpenAI
    http: httpx.Client
    config: Settings

    @property
    def sent(self) -> dict[str, Any]:
        """The body of the last request that its endpoint got."""
        body: dict[str, Any] = self.api.requests[-1]["body"]
        return body


def run_seat(kind: str, server: EmbeddedServer, home: Path) -> Iterator[Seat]:
    config = Settings(broker_url=server.url, prefix=f"g{secrets.token_hex(4)}:", home=home, retry_backoff=0.0)
    server_type, key, table = SEATS[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEAT_KEY", key)
        models: Any = [{"name": name} for name in MODELS]
        with (
            server_type(key=key) as api,
            llm_grid(
                config,
                {"m.api": LlmRunner(api.url, models, key_env="SEAT_KEY", **table)},
                concurrency=8,
            ),
            serving(config, keep_alive=0.5, admission_wait=0.5) as gateway,
            openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
        ):
            yield Seat(kind, gateway.url, api, client, gateway.http, config)


@pytest.fixture(scope="module", params=list(SEATS))
def seat(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seat]:
    """A seat of each kind in turn."""
    yield from run_seat(request.param, server, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def chat_seat(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seat]:
    yield from run_seat("openai", server, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def own_seat(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seat]:
    """A seat that has Responses itself."""
    yield from run_seat("responses", server, tmp_path_factory.mktemp("home"))


def stream_events(seat: Seat, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, each checked for its name, its type and its number."""
    with seat.http.stream("POST", "/v1/responses", json={"stream": True, **body}) as reply:
        assert reply.status_code == 200, reply.read()
        return read_events(reply)


def read_events(reply: httpx.Response, first: int = 0) -> list[dict[str, Any]]:
    events, name = [], ""
    for line in reply.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            events.append(json.loads(value))
            assert events[-1]["type"] == name
            valid(RESPONSE_EVENT, events[-1])
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    return events


def test_a_response(seat: Seat) -> None:
    answer = seat.client.responses.create(model="echo", input=WORDS, metadata={"a": "b"})
    assert answer.output_text.split() == WORDS.split()
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.input_tokens > 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    raw = answer.model_dump(mode="json", by_alias=True, exclude_unset=True)
    valid(RESPONSE, raw)
    assert raw["store"] is False
    assert raw["id"].startswith("resp_")
    again = seat.client.responses.create(model="echo", input=WORDS, store=True)
    assert again.id != answer.id
    assert again.model_dump()["store"] is False
    assert seat.client.responses.create(model="echo", input=[{"role": "user", "content": WORDS}]).output_text


def test_a_stream(seat: Seat) -> None:
    events = stream_events(seat, model="echo", input=WORDS)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas).split() == WORDS.split()
    assert len(deltas) > 1
    for opening, closing in (
        ("response.output_item.added", "response.output_item.done"),
        ("response.content_part.added", "response.content_part.done"),
    ):
        assert kinds.count(opening) == kinds.count(closing) == 1
        assert kinds.index(opening) < kinds.index("response.output_text.delta") < kinds.index(closing)
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    (item,) = events[-1]["response"]["output"]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]} == {added["id"]}
    assert {event["response"]["id"] for event in events if "response" in event} == {
        events[0]["response"]["id"]
    }


def test_the_stream_helper_gives_the_final_response(seat: Seat) -> None:
    with seat.client.responses.stream(model="echo", input=WORDS) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.output_text.delta" in kinds
    assert final.output_text.split() == WORDS.split()


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_and_its_output(seat: Seat, stream: bool) -> None:
    request: Any = {"model": "tools", "input": WORDS, "tools": [WEATHER], "parallel_tool_calls": True}
    if stream:
        answer = RESPONSE.validate_python(stream_events(seat, **request)[-1]["response"])
    else:
        answer = seat.client.responses.create(**request)
    call = next(item for item in answer.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
    assert call.status == "completed"
    history: Any = [
        {"role": "user", "content": WORDS},
        *(item.model_dump(mode="json", exclude_none=True) for item in answer.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"sun": true}'},
        {"role": "user", "content": "and now"},
    ]
    again = seat.client.responses.create(model="echo", input=history, tools=[WEATHER])
    assert again.output_text.split() == ["and", "now"]


def test_a_parsed_answer(seat: Seat) -> None:
    class City(BaseModel):
        city: str

    answer = seat.client.responses.parse(model="echo", input='{"city":"Bern"}', text_format=City)
    assert answer.output_parsed == City(city="Bern")
    sent = json.dumps(seat.sent)
    assert "json" in sent
    assert '"city"' in sent


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_becomes_an_item_with_a_summary(seat: Seat, stream: bool) -> None:
    request: Any = {"model": THINKING_MODELS[seat.kind], "input": WORDS, "reasoning": {"summary": "auto"}}
    if stream:
        answer = RESPONSE.validate_python(stream_events(seat, **request)[-1]["response"])
    else:
        answer = seat.client.responses.create(**request)
    thought = next((item for item in answer.output if item.type == "reasoning"), None)
    if thought is None:
        assert (seat.kind, stream) == ("openai", False)  # this fake thinks in streams only
        return
    assert thought.summary[0].text
    history: Any = [item.model_dump(mode="json", exclude_none=True) for item in answer.output]
    history = [{"role": "user", "content": WORDS}, *history]
    if answer.output[-1].type == "function_call":
        output = {"type": "function_call_output", "call_id": answer.output[-1].call_id, "output": "x"}
        history.append(output)
    history.append({"role": "user", "content": "more"})
    assert seat.client.responses.create(model="echo", input=history).output_text.strip() == "more"


def test_pictures_and_files_reach_every_endpoint(seat: Seat) -> None:
    content = [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQK"},
        {"type": "input_text", "text": WORDS},
    ]
    body = {"model": "echo", "input": [{"role": "user", "content": content}]}
    reply = seat.http.post("/v1/responses", json=body)
    assert reply.status_code == 200 or seat.kind == "openai", reply.text  # this fake reads a text first
    sent = json.dumps(seat.sent)
    assert "iVBORw0KGgo=" in sent
    assert "JVBERi0xLjQK" in sent


def test_encrypted_reasoning_makes_the_round_trip(own_seat: Seat) -> None:
    answer = own_seat.client.responses.create(
        model="reasoning", input=WORDS, include=["reasoning.encrypted_content"], store=False
    )
    assert answer.output[0].type == "reasoning"
    assert answer.output[0].encrypted_content is not None
    assert answer.output[0].encrypted_content.endswith(".gAAAAAB-sealed")
    history: Any = [{"role": "user", "content": WORDS}, *(item.to_dict() for item in answer.output)]
    history.append({"role": "user", "content": "more"})
    assert own_seat.client.responses.create(model="reasoning", input=history).output_text.strip() == "more"
    assert own_seat.sent["input"] == [
        {**item, "encrypted_content": "gAAAAAB-sealed"} if item.get("type") == "reasoning" else item
        for item in history
    ]
    assert own_seat.client.responses.create(model="echo", input=history).output_text == "more"
    assert "reasoning" not in [item.get("type") for item in own_seat.sent["input"]], "another model"


def test_a_request_goes_to_a_responses_seat_as_it_came(own_seat: Seat) -> None:
    body = {
        "model": "echo",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": WORDS}]}],
        "tools": [{"type": "web_search"}, WEATHER],
        "include": ["web_search_call.action.sources"],
        "truncation": "auto",
        "prompt": {"id": "pmpt_1"},
        "vendor_thing": {"deep": [1, None]},
        "stream_options": {"include_obfuscation": False},
        "service_tier": "flex",
    }
    answer = own_seat.http.post("/v1/responses", json={**body, "store": True}).json()
    assert own_seat.sent == {**{k: v for k, v in body.items() if k != "stream_options"}, "store": False}
    assert answer["output"][0]["id"] == "msg_1"  # the endpoint's
    assert answer["id"] != "resp_1"
    stream_events(own_seat, **body)
    assert own_seat.sent == {**body, "store": False, "stream": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("conversation", {"id": "c"})],
)
def test_what_the_grid_does_not_keep_is_refused_by_name(
    seat: Seat, field: str, value: Any, stream: bool
) -> None:
    before = len(seat.api.requests)
    with pytest.raises(openai.BadRequestError) as caught:
        seat.client.responses.create(model="echo", input=WORDS, stream=stream, extra_body={field: value})
    assert caught.value.param == field
    assert caught.value.code
    assert len(seat.api.requests) == before


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"id": "msg_1"}]}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [3]}]}, "input[0].content[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_a_wrong_request_is_refused_by_name(seat: Seat, fields: dict[str, Any], param: str) -> None:
    reply = seat.http.post("/v1/responses", json={"model": "echo", "input": WORDS, **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(
            ({"tools": [{"type": kind}]}, "tools[0].type")
            for kind in ("web_search", "file_search", "code_interpreter", "mcp", "image_generation",
                         "computer", "local_shell", "shell", "apply_patch", "tool_search")
        ),
        ({"tool_choice": {"type": "file_search"}, "tools": [WEATHER]}, "tool_choice"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"moderation": {"model": "m"}}, "moderation"),
    ],
)  # fmt: skip
def test_what_no_seat_can_do_is_refused_by_name(chat_seat: Seat, fields: dict[str, Any], param: str) -> None:
    body = {"model": "echo", "input": WORDS, **fields}
    reply = chat_seat.http.post("/v1/responses", json=body)
    assert reply.status_code == 400, reply.text
    assert find_vendor_part(body) in (param, "")
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_an_endpoints_refusal_keeps_its_status(seat: Seat, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="refused with 400"):
        seat.client.responses.create(model="status-400", input=WORDS, stream=stream)


def test_a_stream_that_breaks_off_fails_in_the_clients_format(seat: Seat) -> None:
    events = stream_events(seat, model="cut", input=WORDS)
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert failed["id"] == events[0]["response"]["id"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert failed["error"]["gridq_code"]
    with seat.client.responses.create(model="cut", input=WORDS, stream=True) as stream:
        assert [event.type for event in stream][-1] == "response.failed"


def test_a_failed_response_of_an_endpoint_is_an_error(own_seat: Seat) -> None:
    with pytest.raises(openai.InternalServerError):
        own_seat.client.responses.create(model="failed", input=WORDS)
    # nothing of the answer was sent, so other attempts follow, and the stream may be open before they end
    reply = own_seat.http.post("/v1/responses", json={"model": "failed", "input": WORDS, "stream": True})
    assert reply.status_code >= 500 or "event: response.failed" in reply.text


def wait_for(seat: Seat, response_id: str) -> Any:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        found = seat.client.responses.retrieve(response_id)
        if found.status not in ("queued", "in_progress"):
            return found
        time.sleep(0.05)
    raise AssertionError("the response did not end")


def test_a_background_response_is_kept_and_read(seat: Seat) -> None:
    queued = seat.client.responses.create(model="echo", input=WORDS, background=True)
    assert (queued.status, queued.background, queued.model) == ("queued", True, "echo")
    valid(RESPONSE, queued.to_dict())
    done = wait_for(seat, queued.id)
    assert (done.status, done.id, done.background) == ("completed", queued.id, True)
    assert done.output_text.split() == WORDS.split()
    events = list(seat.client.responses.retrieve(queued.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    rest = list(seat.client.responses.retrieve(queued.id, stream=True, starting_after=2))
    assert rest == events[3:]
    seat.client.responses.delete(queued.id)
    with pytest.raises(openai.NotFoundError):
        seat.client.responses.retrieve(queued.id)


def test_a_background_response_has_the_same_fields_at_all_times(seat: Seat) -> None:
    asked: Any = {
        "model": "silent",
        "input": WORDS,
        "background": True,
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "tools": [WEATHER],
        "text": {"format": {"type": "text"}},
    }
    queued = seat.http.post("/v1/responses", json=asked).json()
    assert queued.get("status") == "queued", queued
    seen = {"queued": queued}
    until = time.monotonic() + 20
    while "in_progress" not in seen and time.monotonic() < until:
        found = seat.http.get(f"/v1/responses/{queued['id']}").json()
        seen[found["status"]] = found
    cancelled = seat.http.post(f"/v1/responses/{queued['id']}/cancel").json()
    assert cancelled["status"] == "cancelled", cancelled
    seen[cancelled["status"]] = cancelled
    done = seat.http.post("/v1/responses", json={**asked, "model": "echo"}).json()
    while done["status"] not in ("completed", "failed"):
        done = seat.http.get(f"/v1/responses/{done['id']}").json()
    seen[done["status"]] = done
    failed = seat.http.post("/v1/responses", json={**asked, "model": "status-400"}).json()
    while failed["status"] not in ("completed", "failed"):
        failed = seat.http.get(f"/v1/responses/{failed['id']}").json()
    seen[failed["status"]] = failed
    assert seen["failed"]["error"]["gridq_code"]
    assert seen.keys() == {"queued", "in_progress", "cancelled", "completed", "failed"}
    for status, response in seen.items():
        valid(RESPONSE, response)
        if status != "completed" or seat.kind != "responses":  # there the object is the endpoint's own
            assert response.keys() == queued.keys(), status
            assert {name: response[name] for name in ("instructions", "metadata", "max_output_tokens")} == {
                name: asked[name] for name in ("instructions", "metadata", "max_output_tokens")
            }, status
        if status not in ("completed", "failed"):
            assert response == {**queued, "status": status}


def test_a_deleted_response_is_not_found_by_its_idempotency_key(chat_seat: Seat) -> None:
    key = secrets.token_hex(8)

    def create() -> Any:
        return chat_seat.client.responses.create(
            model="echo", input=WORDS, background=True, extra_headers={"idempotency-key": key}
        )

    first = create()
    done = wait_for(chat_seat, first.id)
    assert create() == done, "the same response, as it is now"
    chat_seat.client.responses.delete(first.id)
    second = create()
    assert second.id != first.id
    assert wait_for(chat_seat, second.id).status == "completed"
    assert create().id == second.id
    chat_seat.client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        chat_seat.client.responses.delete(second.id)


def test_a_background_response_leaves_nothing_that_is_not_deleted(chat_seat: Seat) -> None:
    config = chat_seat.config
    with connect(config.broker_url.get_secret_value()) as client:

        def kept() -> list[bytes]:
            places = ("response", "result", "value", "values", "stream", "idempotency")
            return [key for place in places for key in client.scan_iter(f"{config.prefix}.{place}:*")]

        for key in kept():
            client.unlink(key)
        long = WORDS + "x" * 100_000
        done = chat_seat.client.responses.create(model="echo", input=long, instructions=long, background=True)
        assert wait_for(chat_seat, done.id).status == "completed"
        found = kept()
        assert all(0 < client.pttl(key) <= config.result_ttl * 1000 for key in found), found
        chat_seat.client.responses.delete(done.id)
        assert not kept()
        refused = chat_seat.http.post(
            "/v1/responses",
            json={"model": "echo", "input": WORDS, "background": True},
            headers={"x-gridq-pin": "nobody"},
        )
        assert refused.status_code >= 400
        assert not kept()


def test_what_a_response_repeats_is_kept_once(chat_seat: Seat) -> None:
    """The answer is the whole response: what was kept until then goes. That of a failed job stays with it."""
    body = {"input": WORDS, "background": True, "instructions": "secret"}
    done = chat_seat.http.post("/v1/responses", json={"model": "echo", **body}).json()
    assert wait_for(chat_seat, done["id"]).instructions == "secret"
    failed = chat_seat.http.post("/v1/responses", json={"model": "status-400", **body}).json()
    assert wait_for(chat_seat, failed["id"]).instructions == "secret"
    jobs = [str(parse_response_id(made["id"])) for made in (done, failed)]
    config = chat_seat.config
    with connect(config.broker_url.get_secret_value()) as client:
        left = [client.pttl(Keys(config.prefix)("response", job)) for job in jobs]
    assert left[0] == -2
    assert 0 < left[1] <= config.result_ttl * 1000


def test_a_client_that_leaves_during_the_admission_loses_no_fields(
    chat_seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is detached, as it has an idempotency key: it is admitted all the same."""
    admitted, admit = threading.Event(), GridConnection._admit

    def admit_slowly(self: GridConnection, request: Any) -> str:
        time.sleep(0.6)
        try:
            return admit(self, request)
        finally:
            admitted.set()

    monkeypatch.setattr(GridConnection, "_admit", admit_slowly)
    body = {
        "model": "paced",
        "input": WORDS,
        "background": True,
        "metadata": {"a": "b"},
        "instructions": "so",
    }
    headers = {"idempotency-key": secrets.token_hex(8)}
    with pytest.raises(httpx.ReadTimeout):
        chat_seat.http.post("/v1/responses", json=body, headers=headers, timeout=0.3)
    assert admitted.wait(30)
    again = chat_seat.http.post("/v1/responses", json=body, headers=headers).json()
    assert (again["metadata"], again["instructions"]) == ({"a": "b"}, "so")
    chat_seat.http.post(f"/v1/responses/{again['id']}/cancel")


def test_a_background_response_repeats_what_utf_8_cannot_express(chat_seat: Seat) -> None:
    halves = {"instructions": "\ud800", "metadata": {"a": "\ud83d"}}
    body = {"model": "echo", "input": "so", "background": True, **halves}
    queued = chat_seat.http.post("/v1/responses", content=json.dumps(body))
    assert queued.status_code == 200
    shown = chat_seat.http.get(f"/v1/responses/{queued.json()['id']}").json()
    for made in (queued.json(), shown):
        assert {name: made[name] for name in halves} == halves


def test_a_background_response_cannot_repeat_a_number_that_is_too_large(chat_seat: Seat) -> None:
    body = b'{"model":"echo","input":"so","background":true,"temperature":1e400}'
    refused = chat_seat.http.post("/v1/responses", content=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "graph.invalid_field")


def test_a_background_stream_is_resumed_after_an_event(chat_seat: Seat) -> None:
    with chat_seat.client.responses.create(
        model="paced", input=WORDS, background=True, stream=True
    ) as stream:
        response_id = next(iter(stream)).response.id  # type: ignore[union-attr]
    path = f"/v1/responses/{response_id}"
    with chat_seat.http.stream("GET", path, params={"stream": True}) as reply:
        lines = list(reply.iter_lines())
    places = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    for at in (0, 3, len(events) - 2):
        by_header = {"last-event-id": places[at]}
        for params, headers in (
            ({"starting_after": at}, {}),
            ({}, by_header),
            ({"starting_after": 0}, by_header),  # a client that reconnects repeats its first URL
        ):
            with chat_seat.http.stream(
                "GET", path, params={"stream": True, **params}, headers=headers
            ) as reply:
                assert reply.status_code == 200, reply.read()
                rest = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: ")]
            assert rest == events[at + 1 :]
    for wrong in ("nonsense", f"other/{places[0].partition('/')[2]}"):
        reply = chat_seat.http.get(path, params={"stream": True}, headers={"last-event-id": wrong})
        assert reply.status_code == 400, wrong


def test_a_stream_whose_beginning_is_gone_is_followed_from_what_is_left(chat_seat: Seat) -> None:
    config = chat_seat.config
    done = chat_seat.client.responses.create(model="echo", input="w " * 60, background=True)
    whole = wait_for(chat_seat, done.id)
    path = f"/v1/responses/{done.id}"
    reply = chat_seat.http.get(path, params={"stream": True})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    with connect(config.broker_url.get_secret_value()) as client:
        (key,) = (
            key for key in client.scan_iter(f"{config.prefix}.stream:*") if client.xlen(key) >= len(events)
        )
        client.xtrim(key, maxlen=20, approximate=False)  # as the server does after 10,000 events
        first = json.loads(client.xrange(key, count=1)[0][1][b"piece"])["sequence_number"]
    assert first > 10
    for params in ({}, {"starting_after": 5}, {"starting_after": first - 2}):
        with pytest.raises(openai.APIStatusError) as caught:
            chat_seat.client.responses.retrieve(done.id, stream=True, **params)  # type: ignore[call-overload]
        assert caught.value.code == "stream.trimmed"
        assert caught.value.status_code == 410
    for number in (first, first + 5):
        rest = list(chat_seat.client.responses.retrieve(done.id, stream=True, starting_after=number))
        assert [event.to_dict() for event in rest] == events[number + 1 :]
    assert chat_seat.client.responses.retrieve(done.id) == whole


def test_the_responses_of_another_agent_are_not_found(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextmanager(run_seat)("openai", server, tmp_path) as seat:
        with connect(server.url) as client:
            keys = Keys(seat.config.prefix)
            texts = {
                agent: api_keys.create(client, keys, agent, scopes=scopes)[1]
                for agent, scopes in (
                    ("a", ("submit", "read")),
                    ("b", ("submit", "read")),
                    ("boss", ("submit", "read-all")),
                )
            }
        agents = {
            agent: openai.OpenAI(base_url=f"{seat.url}/v1", api_key=text, max_retries=0)
            for agent, text in texts.items()
        }
        queued = agents["a"].responses.create(model="echo", input=WORDS, background=True)
        for ask in (
            agents["b"].responses.retrieve,
            agents["b"].responses.cancel,
            agents["b"].responses.delete,
            lambda response_id: agents["b"].responses.retrieve(response_id, stream=True),
        ):
            with pytest.raises(openai.NotFoundError):
                ask(queued.id)
        assert agents["boss"].responses.retrieve(queued.id).id == queued.id
        with pytest.raises(openai.PermissionDeniedError):
            agents["boss"].responses.delete(queued.id)
        assert agents["a"].responses.delete(queued.id) is None
        for each in agents.values():
            each.close()


@pytest.mark.parametrize("kind", ["chat_seat", "own_seat"])
def test_a_background_response_is_cancelled(kind: str, request: pytest.FixtureRequest) -> None:
    seat: Seat = request.getfixturevalue(kind)
    with seat.client.responses.create(model="slow", input=WORDS, background=True, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    seat_id = first.response.id
    assert seat.client.responses.retrieve(seat_id).status == "in_progress"
    assert seat.client.responses.cancel(seat_id).status == "cancelled"
    assert seat.client.responses.retrieve(seat_id).status == "cancelled"
    assert seat.client.responses.cancel(seat_id).status == "cancelled"
    with seat.client.responses.retrieve(seat_id, stream=True) as stream:
        assert [event.type for event in stream][-1] == "response.failed"


def test_a_failed_background_response_has_its_error(chat_seat: Seat) -> None:
    queued = chat_seat.client.responses.create(model="status-400", input=WORDS, background=True)
    failed = wait_for(chat_seat, queued.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "invalid_prompt"
    assert "refused with 400" in failed.error.message
    with chat_seat.client.responses.retrieve(queued.id, stream=True) as stream:
        (event,) = stream
    assert event.type == "response.failed"
    assert event.response.id == queued.id
    valid(RESPONSE, failed.to_dict())


def test_a_foreground_response_is_not_kept(chat_seat: Seat) -> None:
    answer = chat_seat.client.responses.create(model="echo", input=WORDS)
    for response_id in (answer.id, "resp_x", "resp_" + "0" * 32):
        for ask in (
            chat_seat.client.responses.retrieve,
            chat_seat.client.responses.cancel,
            chat_seat.client.responses.delete,
        ):
            with pytest.raises(openai.NotFoundError):
                ask(response_id)


def test_a_stream_is_resumed_by_its_last_event_id(chat_seat: Seat) -> None:
    with chat_seat.http.stream(
        "POST",
        "/v1/responses",
        json={"model": "paced", "input": WORDS, "stream": True},
        headers={"x-gridq-detach": "1"},
    ) as reply:
        lines = reply.iter_lines()
        last = ""
        for line in lines:
            last = line.removeprefix("id: ") if line.startswith("id: ") else last
            if line == "event: response.output_text.delta":
                break
    with chat_seat.http.stream(
        "POST",
        "/v1/responses",
        json={"model": "paced", "input": WORDS, "stream": True},
        headers={"last-event-id": last},
    ) as reply:
        assert reply.status_code == 200, reply.read()
        resumed = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: ")]
    assert resumed[-1]["type"] == "response.completed"
    assert resumed[-1]["response"]["output"][0]["content"][0]["text"].split() == WORDS.split()
    numbers = [event["sequence_number"] for event in resumed]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] > 1


def test_input_tokens_are_estimated(chat_seat: Seat) -> None:
    short = chat_seat.client.responses.input_tokens.count(model="echo", input=WORDS)
    assert short.object == "response.input_tokens"
    assert 1 < short.input_tokens < 12
    long = chat_seat.client.responses.input_tokens.count(
        model="echo",
        instructions=WORDS * 10,
        tools=[WEATHER],
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": WORDS * 100}]},
            {"type": "function_call_output", "call_id": "c", "output": WORDS * 100},
        ],
    )
    assert 700 < long.input_tokens < 1300


def test_many_concurrent_responses_have_their_own_ids(chat_seat: Seat) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> tuple[str, str]:
        if number % 2:
            answer = await client.responses.create(model="echo", input=f"number {number}")
        else:
            async with client.responses.stream(model="echo", input=f"number {number}") as stream:
                answer = await stream.get_final_response()
        return answer.id, answer.output_text

    async def all_of_them() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=f"{chat_seat.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, number) for number in range(30)))

    found = asyncio.run(all_of_them())
    assert [text for _, text in found] == [f"number {number} " for number in range(30)]
    assert len({response_id for response_id, _ in found}) == 30


def test_a_repeated_request_gets_the_same_response(chat_seat: Seat) -> None:
    request: Any = {
        "model": "echo",
        "input": WORDS,
        "extra_headers": {"idempotency-key": secrets.token_hex(8)},
    }
    first, second = (chat_seat.client.responses.create(**request) for _ in range(2))
    assert first == second
    queued: Any = {**request, "background": True, "extra_headers": {"idempotency-key": secrets.token_hex(8)}}
    assert len({chat_seat.client.responses.create(**queued).id for _ in range(2)}) == 1


def test_another_seat_takes_over_whatever_its_api_format(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Settings(
        broker_url=server.url, prefix=f"g{secrets.token_hex(4)}:", home=tmp_path, retry_backoff=0.0
    )
    monkeypatch.setenv("WRONG_KEY", "sk-wrong")
    monkeypatch.setenv("RIGHT_KEY", anthropic_server.KEY)
    models: Any = [{"name": "echo"}]
    with (
        ResponsesServer() as first,
        AnthropicServer() as second,
        llm_grid(
            config,
            {
                "m.first": LlmRunner(first.url, models, key_env="WRONG_KEY", responses=True),
                "m.second": LlmRunner(second.url, models, key_env="RIGHT_KEY", api="anthropic"),
            },
            concurrency=2,
        ),
        serving(config, keep_alive=5, admission_wait=0.5) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for _ in range(40):  # either seat may be the first to claim a request
            with client.responses.stream(model="echo", input=WORDS) as stream:
                assert stream.get_final_response().output_text.split() == WORDS.split()
            if first.requests:
                break
        assert first.requests


def test_the_vendors_own_tools_find_the_seat_that_has_them(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Settings(
        broker_url=server.url, prefix=f"g{secrets.token_hex(4)}:", home=tmp_path, retry_backoff=0.0
    )
    monkeypatch.setenv("SEAT_KEY", openai_server.KEY)
    models: Any = [{"name": "echo"}]
    with (
        OpenAIServer(key=openai_server.KEY) as chat,
        ResponsesServer(openai_server.KEY) as own,
        llm_grid(
            config,
            {
                "m.chat": LlmRunner(chat.url, models, key_env="SEAT_KEY"),
                "m.own": LlmRunner(own.url, models, key_env="SEAT_KEY", responses=True),
            },
            concurrency=4,
        ),
        serving(config, keep_alive=5, admission_wait=0.5) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for _ in range(12):
            assert client.responses.create(
                model="echo", input=WORDS, tools=[{"type": "web_search"}]
            ).output_text
        assert (len(chat.requests), len(own.requests)) == (0, 12)
