"""Nothing is dropped in silence: a header names what has no effect; what would change the answer is refused.

One grid, with a seat of each API format, asked by clients of each of the three model APIs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gridq.config.settings import Settings
from gridq.gateway.routes.model_api import MAX_DROPPED_FIELDS_BYTES
from tests.fakes import anthropic_server, gemini_server, openai_server
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import Gateway, serving
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

HEADER = "x-gridq-dropped-fields"
SEATS: dict[str, Any] = {
    "anthropic": (AnthropicServer, anthropic_server.KEY, {"api": "anthropic"}),
    "google": (GeminiServer, gemini_server.KEY, {"api": "google"}),
    "own": (OpenAIServer, openai_server.KEY, {"api": "openai", "provider": "openai"}),
    "compatible": (OpenAIServer, openai_server.KEY, {"api": "openai"}),
}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
USER = [{"role": "user", "content": "so it goes"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    MESSAGES: {"messages": USER, "max_tokens": 9},
    RESPONSES: {"input": "so it goes"},
}


@pytest.fixture(scope="module")
def gateway(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    config = Settings(
        broker_url=server.url,
        prefix=f"g{secrets.token_hex(4)}:",
        home=Path(tmp_path_factory.mktemp("home")),
        retry_backoff=0.0,
    )
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        runners = {}
        for kind, (server_type, key, table) in SEATS.items():
            patch.setenv(f"{kind.upper()}_KEY", key)
            url = stack.enter_context(server_type(key=key)).url
            models = [
                {"name": "echo", "families": [f"at-{kind}"]},
                {"name": "tools", "families": [f"tools-{kind}"]},
            ]
            runners[f"m.{kind}"] = LlmRunner(url, models, key_env=f"{kind.upper()}_KEY", **table)
        stack.enter_context(llm_grid(config, runners, concurrency=4))
        yield stack.enter_context(serving(config, allowed_origins=["https://page.example"]))


def ask(gateway: Gateway, path: str, kind: str, **fields: Any) -> httpx.Response:
    return gateway.http.post(path, json={"model": f"at-{kind}", **BODIES[path], **fields})


def read_dropped(reply: httpx.Response) -> list[str]:
    assert reply.status_code == 200, reply.text
    stated = reply.headers.get(HEADER, "")
    return sorted(stated.split(", ")) if stated else []


DROPPED: list[tuple[str, str, dict[str, Any], list[str]]] = [
    (
        CHAT,
        "anthropic",
        {"seed": 0, "presence_penalty": 0.5, "store": True},
        ["presence_penalty", "seed", "store"],
    ),
    (CHAT, "anthropic", {"seed": None, "presence_penalty": 0, "store": False, "metadata": {}, "n": 1}, []),
    (
        CHAT,
        "anthropic",
        {"service_tier": "auto", "logit_bias": {}, "logprobs": False, "modalities": ["text"]},
        [],
    ),
    (CHAT, "anthropic", {"temperature": 1.5, "stop": ["\n", "END"]}, ["stop[0]", "temperature"]),
    (CHAT, "anthropic", {"temperature": 1, "stop": "END", "user": "ada"}, []),
    (CHAT, "anthropic", {"reasoning_effort": "high"}, []),
    (CHAT, "anthropic", {"reasoning_effort": "high", "max_tokens": 9}, ["reasoning_effort"]),
    (CHAT, "google", {"user": "ada", "seed": 3, "frequency_penalty": 1}, ["user"]),
    (CHAT, "compatible", {"user": "ada", "seed": 3, "vendor_thing": 1, "store": True}, []),
    (CHAT, "own", {"user": "ada", "seed": 3, "store": True}, []),
    (MESSAGES, "google", {"metadata": {"user_id": "ada"}, "service_tier": "auto"}, ["metadata"]),
    (
        MESSAGES,
        "compatible",
        {
            "metadata": {"user_id": "ada"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "speed": "standard",
        },
        ["context_management", "output_config.effort", "thinking.budget_tokens"],
    ),
    (MESSAGES, "own", {"top_k": 5}, ["top_k"]),
    (MESSAGES, "compatible", {"top_k": 5}, []),
    (MESSAGES, "anthropic", {"top_k": 5, "service_tier": "standard_only", "a_new_field": 1}, []),
    (
        RESPONSES,
        "anthropic",
        {
            "reasoning": {"effort": "high", "mode": "pro"},
            "text": {"verbosity": "low"},
            "prompt_cache_key": "k",
            "truncation": "disabled",
            "metadata": {"a": "b"},
        },
        ["prompt_cache_key", "reasoning.mode", "text.verbosity"],
    ),
    (RESPONSES, "anthropic", {"reasoning": {"effort": "low"}, "max_output_tokens": 9}, ["reasoning.effort"]),
    (RESPONSES, "own", {"text": {"verbosity": "low"}, "prompt_cache_key": "k", "store": False}, []),
    (RESPONSES, "google", {"user": "ada", "truncation": "auto"}, ["truncation", "user"]),
]


@pytest.mark.parametrize(("path", "kind", "fields", "dropped"), DROPPED)
def test_a_header_names_what_has_no_effect(
    gateway: Gateway, path: str, kind: str, fields: dict[str, Any], dropped: list[str]
) -> None:
    whole = ask(gateway, path, kind, **fields)
    assert read_dropped(whole) == dropped
    stream = ask(gateway, path, kind, **fields, stream=True)
    assert read_dropped(stream) == dropped
    assert (f": {HEADER}: " in stream.text) == bool(dropped)
    rows = gateway.http.get(f"/jobs/{whole.headers['x-gridq-job']}").json()["rows"]
    assert sorted(rows[0]["dropped_fields"]) == dropped


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    (CHAT, "anthropic", {"logit_bias": {"50256": -100}}, "logit_bias"),
    (CHAT, "google", {"logit_bias": {"50256": -100}}, "logit_bias"),
    (CHAT, "anthropic", {"n": 2}, "n"),
    (CHAT, "anthropic", {"logprobs": True}, "logprobs"),
    (CHAT, "google", {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, "anthropic", {"web_search_options": {}}, "web_search_options"),
    (CHAT, "google", {"web_search_options": {}}, "web_search_options"),
    (CHAT, "anthropic", {"guided_regex": "a+"}, "guided_regex"),
    (CHAT, "google", {"guided_regex": "a+"}, "guided_regex"),
    (CHAT, "google", {"stop": list("abcdef")}, "stop"),
    (MESSAGES, "google", {"stop_sequences": list("abcdef")}, "stop_sequences"),
    (MESSAGES, "own", {"stop_sequences": list("abcde")}, "stop_sequences"),
    (MESSAGES, "compatible", {"inference_geo": "us"}, "inference_geo"),
    (MESSAGES, "google", {"a_field_of_tomorrow": True}, "a_field_of_tomorrow"),
    (MESSAGES, "compatible", {"thread": {"type": "create"}}, "thread"),
    (RESPONSES, "compatible", {"a_field_of_tomorrow": True}, "a_field_of_tomorrow"),
    (RESPONSES, "anthropic", {"top_logprobs": 2}, "top_logprobs"),
    (RESPONSES, "google", {"include": ["message.output_text.logprobs"]}, "include"),
]


@pytest.mark.parametrize(("path", "kind", "fields", "param"), REFUSED)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_would_change_the_answer_is_refused_by_the_clients_name(
    gateway: Gateway, path: str, kind: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    reply = ask(gateway, path, kind, **fields, stream=stream)
    error = reply.json()["error"]
    assert reply.status_code == 400, reply.text
    details = {**error, **error.get("details", {})}
    assert (error.get("param") or details["param"]) == param
    assert details["expected"]
    assert HEADER not in reply.headers


@pytest.mark.parametrize("kind", SEATS)
def test_at_the_edge_of_the_limit_stop_sequences_pass(gateway: Gateway, kind: str) -> None:
    limit = {"google": 5, "own": 4}.get(kind, 9)
    reply = ask(gateway, MESSAGES, kind, stop_sequences=list("abcdefghi")[:limit])
    assert read_dropped(reply) == []


def test_a_place_that_the_client_named_cannot_forge_a_header(gateway: Gateway) -> None:
    name = "a\r\nx-forged: 1, ü"
    schema = {"type": "object", "properties": {name: {"type": "integer", "minimum": 1}}, "required": [name]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for stream in (False, True):
        reply = ask(gateway, CHAT, "anthropic", response_format=wanted, stream=stream)
        (dropped,) = read_dropped(reply)
        assert dropped.startswith("response_format.json_schema.schema.properties.a%0D%0A")
        assert dropped.endswith(".minimum")
        assert "x-forged" not in reply.headers


def test_half_of_a_pair_in_a_name_is_escaped(gateway: Gateway) -> None:
    half = "\ud800"
    schema = {"type": "object", "properties": {half: {"type": "integer", "minimum": 1}}, "required": [half]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"model": "at-anthropic", **BODIES[CHAT], "response_format": wanted}
    reply = gateway.http.post(CHAT, content=json.dumps(body))
    assert read_dropped(reply) == ["response_format.json_schema.schema.properties.%ED%A0%80.minimum"]


def test_a_header_has_a_bounded_length(gateway: Gateway) -> None:
    names = [f"{number}{'ü' * 40}" for number in range(60)]
    bounded: dict[str, Any] = {name: {"type": "integer", "minimum": 1} for name in names}
    schema = {"type": "object", "properties": bounded, "required": names}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = ask(gateway, CHAT, "anthropic", response_format=wanted)
    assert reply.status_code == 200
    assert 100 < len(reply.headers[HEADER]) <= MAX_DROPPED_FIELDS_BYTES + len(", ...")
    assert reply.headers[HEADER].endswith(", ...")


def test_a_page_may_read_the_header(gateway: Gateway) -> None:
    body = {"model": "at-anthropic", **BODIES[CHAT], "seed": 1}
    reply = gateway.http.post(CHAT, json=body, headers={"origin": "https://page.example"})
    assert HEADER in reply.headers["access-control-expose-headers"]


def test_the_official_clients_show_the_header(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="at-anthropic", messages=[{"role": "user", "content": "so"}], seed=1
        )
        assert raw.headers[HEADER] == "seed"
        assert raw.parse().choices[0].message.content
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as other:
        made = other.messages.with_raw_response.create(
            model="at-compatible",
            max_tokens=9,
            messages=[{"role": "user", "content": "so"}],
            output_config={"effort": "low"},
        )
        assert made.headers[HEADER] == "output_config.effort"
        assert made.parse().content[0].type == "text"


@pytest.mark.parametrize("kind", ["compatible", "anthropic", "google"])
def test_a_prompt_of_tokens_is_refused_at_a_model_of_another_vocabulary(gateway: Gateway, kind: str) -> None:
    for prompt in ([504, 3575], [[504], [3575]]):
        reply = gateway.http.post("/v1/completions", json={"model": f"at-{kind}", "prompt": prompt})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")
    own = gateway.http.post("/v1/completions", json={"model": "at-own", "prompt": "so it goes"})
    assert own.status_code == 200
