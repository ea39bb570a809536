"""Bodies of tens of megabytes: they pass unchanged, take bounded memory, and a refusal names its limit."""

from __future__ import annotations

import base64
import gc
import secrets
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gridq.config.settings import Settings
from gridq.gateway.http.body_memory import LARGE_BODY_BYTES, BodyMemory
from gridq.gateway.http.middleware import DEFAULT_MODEL_BODY_BYTES
from gridq.limits import api_keys
from gridq.store import values
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests.fakes.http_server import Handler, LocalServer
from tests.gateways import Gateway, serving
from tests.seat_runners import LlmRunner, llm_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
MEGABYTE = 1024 * 1024
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + secrets.token_bytes(20 * MEGABYTE)).decode()
EMOJI = "a grinning face: \U0001f600"
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "sees",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "a cat"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}


class Endpoint(LocalServer):
    """An endpoint that keeps the bytes of the last body. It refuses the model `tiny` before it reads them."""

    def __init__(self) -> None:
        super().__init__(_make_handler(self), "/v1")
        self.raw = b""
        self.refused = 0


def _make_handler(endpoint: Endpoint) -> type[Handler]:
    class EndpointHandler(Handler):
        def do_POST(self) -> None:
            first = self.rfile.read(100)
            if b'"tiny"' in first:
                endpoint.refused += 1
                self.close_connection = True
                self.answer(413, {"error": {"message": "too large", "type": "request_too_large"}})
                return
            endpoint.raw = first + self.rfile.read(int(self.headers["content-length"]) - len(first))
            self.answer(200, ANSWER)

    return EndpointHandler


class Site:
    """A gateway before a seat at `Endpoint`."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint, config: Settings) -> None:
        self.gateway = gateway
        self.endpoint = endpoint
        self.config = config

    @property
    def memory(self) -> BodyMemory:
        """The gateway's memory for bodies."""
        layer = self.gateway.server.config.app.middleware_stack
        while not hasattr(layer, "body_memory"):
            layer = layer.app
        memory: BodyMemory = layer.body_memory
        return memory

    def stored_values(self) -> list[bytes]:
        with connect(self.config.broker_url.get_secret_value()) as client:
            return list(client.scan_iter(f"{self.config.prefix}.value:*"))


@contextmanager
def run_site(server: EmbeddedServer, home: Path, **options: Any) -> Iterator[Site]:
    config = Settings(broker_url=server.url, prefix=f"g{secrets.token_hex(4)}:", home=home, retry_backoff=0.0)
    with (
        Endpoint() as endpoint,
        llm_grid(
            config,
            {"m.api": LlmRunner(endpoint.url, [{"name": "sees"}, {"name": "tiny"}])},
            concurrency=4,
        ),
        serving(config, admission_wait=0.5, **options) as gateway,
    ):
        yield Site(gateway, endpoint, config)


@pytest.fixture(scope="module")
def site(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with run_site(server, tmp_path_factory.mktemp("home")) as running:
        yield running


def ask_openai(url: str) -> str:
    content: Any = [
        {"type": "text", "text": EMOJI},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
    ]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model="sees", messages=[{"role": "user", "content": content}])
    return answer.choices[0].message.content or ""


def ask_responses(url: str) -> str:
    content: Any = [
        {"type": "input_text", "text": EMOJI},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}", "detail": "auto"},
    ]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return client.responses.create(model="sees", input=[{"role": "user", "content": content}]).output_text


def ask_anthropic(url: str) -> str:
    source: Any = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    content: Any = [{"type": "text", "text": EMOJI}, {"type": "image", "source": source}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(
            model="sees", max_tokens=9, messages=[{"role": "user", "content": content}]
        )
    assert answer.content[0].type == "text"
    return answer.content[0].text


@pytest.mark.parametrize("ask", [ask_openai, ask_responses, ask_anthropic])
def test_a_picture_of_twenty_megabytes_passes_whole(site: Site, ask: Any) -> None:
    assert ask(site.gateway.url) == "a cat"
    assert EMOJI.encode() in site.endpoint.raw, "as it came, without escapes"
    assert f"data:image/png;base64,{PICTURE}".encode() in site.endpoint.raw
    assert len(site.endpoint.raw) < len(PICTURE) + 1000
    wait_for(site.stored_values, true=lambda names: not names)  # the prompt is dropped once it is answered
    assert site.memory.reserved == 0


def test_a_worker_drops_a_prompt_as_soon_as_it_is_answered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Body(dict[str, Any]):
        """A body that a weak reference can follow."""

    prompts: list[weakref.ref[Body]] = []
    decode = values.decode

    def follow(data: bytes | bytearray) -> Any:
        value = decode(data)
        if isinstance(value, dict) and "body" in value:
            value["body"] = Body(value["body"])
            prompts.append(weakref.ref(value["body"]))
        return value

    monkeypatch.setattr(values, "decode", follow)
    gc.disable()
    try:
        messages = [{"role": "user", "content": "x" * MEGABYTE}]
        reply = site.gateway.http.post(CHAT, json={"model": "sees", "messages": messages})
        assert reply.status_code == 200
        wait_for(lambda: [prompt() for prompt in prompts], true=lambda found: found == [None])
    finally:
        gc.enable()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/v1/messages/count_tokens"])
def test_a_body_over_the_limit_is_refused_in_the_apis_format(site: Site, path: str) -> None:
    body = b" " * (DEFAULT_MODEL_BODY_BYTES + 1)
    for content in (body, iter([body[:MEGABYTE]] * 33)):
        reply = site.gateway.http.post(path, content=content)
        assert reply.status_code == 413
        error = reply.json()["error"]
        assert error["limited_by"] == "GRIDQ_GATEWAY_MAX_BODY"
        assert error["type"] == ("request_too_large" if "messages" in path else "invalid_request_error")
    assert site.memory.reserved == 0


def test_official_clients_see_the_refusal_and_send_the_body_once(site: Site) -> None:
    sent = []
    hooks = {"request": [lambda request: sent.append(request.url.path)]}
    text = "x" * (DEFAULT_MODEL_BODY_BYTES + 1)
    with (
        openai.OpenAI(
            base_url=f"{site.gateway.url}/v1",
            api_key="none",
            http_client=openai.DefaultHttpxClient(event_hooks=hooks),
        ) as client,
        pytest.raises(openai.APIStatusError) as refused,
    ):
        client.chat.completions.create(model="sees", messages=[{"role": "user", "content": text}])
    assert refused.value.status_code == 413
    with (
        anthropic.Anthropic(
            base_url=site.gateway.url,
            api_key="none",
            http_client=anthropic.DefaultHttpxClient(event_hooks=hooks),
        ) as claude,
        pytest.raises(anthropic.APIStatusError) as also,
    ):
        claude.messages.create(model="sees", max_tokens=9, messages=[{"role": "user", "content": text}])
    assert also.value.status_code == 413
    assert sent == [CHAT, MESSAGES]


def test_an_endpoint_that_refuses_before_it_has_read_the_body_is_asked_once(site: Site) -> None:
    before = site.endpoint.refused
    messages = [{"role": "user", "content": "x" * 20 * MEGABYTE}]
    reply = site.gateway.http.post(CHAT, json={"model": "tiny", "messages": messages})
    assert reply.status_code == 413, reply.text
    assert "too large" in reply.text
    assert site.endpoint.refused == before + 1


def test_the_keys_own_limit_is_named(server: EmbeddedServer, tmp_path: Path) -> None:
    with run_site(server, tmp_path) as keyed:
        with connect(server.url) as client:
            limits = api_keys.KeyLimits(max_body=2 * MEGABYTE)
            key, text = api_keys.create(client, Keys(keyed.config.prefix), "a", limits=limits)
        headers = {"authorization": f"Bearer {text}"}
        reply = keyed.gateway.http.post(CHAT, content=b" " * 3 * MEGABYTE, headers=headers)
        assert reply.status_code == 413
        assert key.id in reply.json()["error"]["limited_by"]


@pytest.mark.parametrize("option", ["maxmemory", "proto-max-bulk-len"])
def test_the_servers_limit_is_named(tmp_path: Path, option: str) -> None:
    with EmbeddedServer(maxmemory=64 * MEGABYTE if option == "maxmemory" else 0) as server:
        if option != "maxmemory":
            with connect(server.url) as client:
                client.config_set(option, 8 * MEGABYTE)
        with run_site(server, tmp_path) as small:
            for size, status in ((9 * MEGABYTE, 413), (7 * MEGABYTE, 200)):
                text = "x" * size
                body = {"model": "sees", "messages": [{"role": "user", "content": text}]}
                reply = small.gateway.http.post(CHAT, json=body)
                assert reply.status_code == status, reply.text[:500]
                if status == 413:
                    assert reply.json()["error"]["limited_by"] == f"{option} of the Redis server"
            assert small.memory.reserved == 0


def test_a_body_that_has_no_room_waits_and_small_requests_pass(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_site(server, tmp_path, body_memory=4 * MEGABYTE) as tight:
        memory = tight.memory
        monkeypatch.setattr(memory, "_wait", 1.0)
        host, port = tight.gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {3 * MEGABYTE}\r\n\r\n{{"
            slow.sendall(head.encode())  # and no more
            wait_for(lambda: memory.reserved, true=lambda size: size == 3 * MEGABYTE)
            large = {"model": "sees", "messages": [{"role": "user", "content": "x" * 2 * MEGABYTE}]}
            reply = tight.gateway.http.post(CHAT, json=large)
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] == "gateway.busy"
            assert reply.headers["retry-after"]
            small = {
                "model": "sees",
                "messages": [{"role": "user", "content": "x" * (LARGE_BODY_BYTES // 2)}],
            }
            begun = time.monotonic()
            assert tight.gateway.http.post(CHAT, json=small).status_code == 200
            assert time.monotonic() - begun < 1.0
        wait_for(lambda: memory.reserved, true=lambda size: size == 0)  # it has disconnected
        assert tight.gateway.http.post(CHAT, json=large).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b'{"model":"sees","messages":[' + b"[]," * 5 * MEGABYTE,
        b'{"model":"sees","messages":"' + b"x" * 20 * MEGABYTE,
        b"[" * 20 * MEGABYTE,
        b"\xff" * 20 * MEGABYTE,
        b"1" * 20 * MEGABYTE,
        b'{"model":"sees","x":"' + b"\\u" * 9 * MEGABYTE + b'"}',
        b'{"model":"sees","x":"' + b"a" * 20 * MEGABYTE + b'\x00"}',
    ],
    ids=["lists", "cut", "brackets", "no-text", "digits", "escapes", "control"],
)
def test_malformed_large_bodies_are_refused_soon_and_hold_nothing(site: Site, content: bytes) -> None:
    begun = time.monotonic()
    reply = site.gateway.http.post(CHAT, content=content)
    assert reply.status_code in (400, 413), reply.text[:300]
    assert reply.json()["error"]["code"]
    assert time.monotonic() - begun < 20
    assert site.memory.reserved == 0


def test_clients_that_disconnect_while_they_send_hold_nothing(site: Site) -> None:
    host, port = site.gateway.url.removeprefix("http://").split(":")
    for sent in (0, 100, 5 * MEGABYTE):
        with socket.create_connection((host, int(port))) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {9 * MEGABYTE}\r\n\r\n"
            client.sendall(head.encode() + b" " * sent)
    wait_for(lambda: site.memory.reserved, true=lambda size: size == 0)
    messages = [{"role": "user", "content": "x" * 5 * MEGABYTE}]
    with pytest.raises(httpx.ReadTimeout):  # after it has sent all
        httpx.post(
            f"{site.gateway.url}{CHAT}",
            json={"model": "sees", "messages": messages},
            timeout=httpx.Timeout(5, read=0.001),
        )
    wait_for(lambda: site.memory.reserved, true=lambda size: size == 0)
