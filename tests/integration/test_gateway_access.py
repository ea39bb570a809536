"""Access to two gateways of one grid: keys, scopes, limits, failed attempts, CORS."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest

from gridq.config.settings import Settings
from gridq.gateway.auth.failed_attempts import BURST
from gridq.limits import api_keys
from gridq.limits.api_keys import KeyLimits
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests.fakes.bench_profile import BENCH
from tests.gateways import Gateway, serving
from tests.refusals import check_refusal
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

PAGE = "https://app.example.com"


class Site:
    """Two gateways of one grid that requires keys. Each client has its own address behind a proxy."""

    def __init__(self, config: Settings) -> None:
        self.redis = connect(config.broker_url.get_secret_value(), name="tests")
        self.keys = Keys(config.prefix)
        self.first: Gateway
        self.second: Gateway
        self.opened = contextlib.ExitStack()
        self._addresses = count(1)

    def key(self, agent: str = "ann", **options: Any) -> tuple[api_keys.Key, str]:
        return api_keys.create(self.redis, self.keys, agent, **options)

    def clients(self, key: str = "", **headers: str) -> tuple[httpx.Client, httpx.Client]:
        """Return a client of each gateway, with the same new address. In `headers`, `_` stands for `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given["x-forwarded-for"] = f"10.1.0.{next(self._addresses)}"
        if key:
            given["authorization"] = f"Bearer {key}"
        return tuple(  # type: ignore[return-value]
            self.opened.enter_context(httpx.Client(base_url=gateway.url, headers=given, trust_env=False))
            for gateway in (self.first, self.second)
        )

    @contextlib.contextmanager
    def open_request(self, gateway: Gateway, key: str) -> Iterator[None]:
        """Keep a request open that is accepted but sends no body."""
        at = urlsplit(gateway.url)
        with socket.create_connection((at.hostname or "", at.port or 0), timeout=20) as sock:
            sock.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
                b"Expect: 100-continue\r\nAuthorization: Bearer " + key.encode() + b"\r\n\r\n"
            )
            assert sock.recv(100).startswith(b"HTTP/1.1 100"), "the gateway asks for the body"
            yield


@pytest.fixture(scope="module")
def site(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    config = Settings(
        broker_url=server.url,
        prefix=f"t{secrets.token_hex(4)}:",
        home=tmp_path_factory.mktemp("home"),
        profiles=(BENCH, "llm"),
    )
    made = Site(config)
    made.key("operator", scopes=("operate",))
    options: dict[str, Any] = {"trusted_proxies": ("127.0.0.1",), "allowed_origins": (PAGE,)}
    with serving(config, **options) as made.first, serving(config, max_body=2048, **options) as made.second:
        yield made
    for name in made.redis.scan_iter(f"{config.prefix}*", count=1000):
        made.redis.unlink(name)
    made.redis.close()


@pytest.fixture(autouse=True)
def closed(site: Site) -> Iterator[None]:
    """Close the clients of each test."""
    yield
    site.opened.close()


def code(answer: httpx.Response) -> str:
    found: str = answer.json()["error"]["code"]
    return found


def until(client: httpx.Client, status: int) -> httpx.Response:
    """Wait for an answer with this status and return it."""
    return wait_for(lambda: client.get("/v1/models"), 5, true=lambda answer: answer.status_code == status)


def test_a_key_is_required(site: Site) -> None:
    bare, _ = site.clients()
    answer = bare.get("/v1/models")
    assert (answer.status_code, code(answer)) == (401, "auth.key_missing")
    assert "Bearer" in answer.headers["www-authenticate"]


def test_a_key_comes_in_either_header(site: Site) -> None:
    _, text = site.key()
    bearer, _ = site.clients(text)
    bare, _ = site.clients(x_api_key=text)
    assert bearer.get("/v1/models").status_code == bare.get("/v1/models").status_code == 200
    basic, _ = site.clients(authorization=f"Basic {text}")
    assert code(basic.get("/v1/models")) == "auth.key_missing"


def test_a_key_is_limited_to_its_scopes(site: Site) -> None:
    _, text = site.key(scopes=("submit",))
    client, _ = site.clients(text)
    answer = client.get("/v1/models")
    assert (answer.status_code, code(answer)) == (403, "auth.scope")
    for scope in ("read-all", "operate"):
        client, _ = site.clients(site.key(scopes=(scope,))[1])
        assert client.get("/v1/models").status_code == 200, f"{scope} may read"
        answer = client.post("/v1/chat/completions", json={"model": "any", "messages": []})
        assert code(answer) == "auth.scope"


def test_a_revoked_key_is_refused_by_every_gateway_within_a_second(site: Site) -> None:
    key, text = site.key()
    for client in site.clients(text):
        assert client.get("/v1/models").status_code == 200
    api_keys.revoke(site.redis, site.keys, key.id)
    for client in site.clients(text):
        answer = until(client, 401)
        assert code(answer) == "auth.key_revoked"
        assert text not in answer.text


def test_requests_a_minute_are_limited_over_all_gateways(site: Site) -> None:
    key, text = site.key(limits=KeyLimits(rpm=5))
    first, second = site.clients(text)
    found = [(first, second)[n % 2].get("/v1/models") for n in range(9)]
    assert [answer.status_code for answer in found] == [200] * 5 + [429] * 4
    error = check_refusal(found[-1], 429, "key.rate")
    assert 50 <= error["retry_after"] <= 60
    assert (error["bottleneck"], error["limit"]) == (f"rpm of the key {key.id} (5)", 5)
    assert error["fix"].endswith(" s, or use a key with a larger --rpm")
    assert (error["capability"], error["position"], error["starts_in"]) == (None, None, None)
    assert site.redis.zcard(site.keys("request_times", key.id)) == 5, "those refused count for nothing"
    other, _ = site.clients(site.key()[1])
    assert other.get("/v1/models").status_code == 200


def test_open_requests_are_limited_over_all_gateways(site: Site) -> None:
    key, text = site.key(limits=KeyLimits(parallel=2))
    first, second = site.clients(text)
    with site.open_request(site.first, text), site.open_request(site.second, text):
        for client in (first, second):
            error = check_refusal(client.get("/v1/models"), 429, "key.parallel")
            assert error["bottleneck"] == f"parallel of the key {key.id} (2)"
            assert (error["retry_after"], error["position"]) == (1.0, None)
    for client in (first, second):
        until(client, 200)
    wait_for(lambda: not site.redis.exists(site.keys("open_requests", key.id)), 5)


def test_a_key_without_limits_costs_no_server_call(site: Site) -> None:
    key, text = site.key()
    client, _ = site.clients(text)
    assert client.get("/v1/models").status_code == 200
    assert not site.redis.exists(site.keys("request_times", key.id), site.keys("open_requests", key.id))


def test_invalid_keys_are_limited_per_address(site: Site) -> None:
    _, good = site.key()
    client, _ = site.clients()
    assert client.get("/v1/models", headers={"x-api-key": good}).status_code == 200
    wrong = [f"gq_{n:012x}_{'A' * 43}" for n in range(BURST + 3)]
    found = [client.get("/v1/models", headers={"x-api-key": text}) for text in wrong]
    assert [answer.status_code for answer in found] == [401] * BURST + [429] * 3
    error = check_refusal(found[-1], 429, "auth.attempts")
    assert 0 < error["retry_after"] <= 6
    assert error["bottleneck"] == "invalid keys per address (10, then one every 6 s)"
    assert (error["position"], error["fix"][:15]) == (None, "use a valid key")
    for text in (good, site.key()[1]):
        answer = client.get("/v1/models", headers={"x-api-key": text})
        assert answer.status_code == 200, "only invalid keys are limited"
    elsewhere, _ = site.clients()
    assert elsewhere.get("/v1/models", headers={"x-api-key": wrong[0]}).status_code == 401


def test_resuming_needs_the_read_scope(site: Site) -> None:
    client, _ = site.clients(site.key(scopes=("submit",))[1])
    answer = client.post("/v1/chat/completions", json={"model": "any"}, headers={"last-event-id": "job/1-1"})
    assert (answer.status_code, code(answer)) == (403, "auth.scope")


def test_a_disconnected_wait_releases_its_slot(site: Site) -> None:
    key, text = site.key(limits=KeyLimits(parallel=1))
    client, _ = site.clients(text)
    graph = {"root": {"op": "Stage", "id": "text_template", "config": {"template": "x"}}}

    def places() -> Any:
        return site.redis.zcard(site.keys("open_requests", key.id))

    job = client.post("/jobs", json={"graph": graph, "wait_for_seat": True}).json()["job"]
    wait_for(lambda: places() == 0)
    at = urlsplit(site.first.url)
    with socket.create_connection((at.hostname or "", at.port or 0), timeout=20) as sock:
        head = f"GET /jobs/{job}?wait=60 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n\r\n"
        sock.sendall(head.encode())
        wait_for(lambda: places() == 1)
    wait_for(lambda: places() == 0, 20)


@pytest.mark.parametrize("text", ["gq_", "x" * 5000, "gq_000000000000_é", "gq_" + "0" * 12 + "_" + "A" * 44])
def test_malformed_keys_are_refused(site: Site, text: str) -> None:
    client, _ = site.clients()
    answer = client.get("/v1/models", headers=[(b"x-api-key", text.encode())])
    assert (answer.status_code, code(answer)) == (401, "auth.key_invalid")


def test_a_key_may_limit_the_body(site: Site) -> None:
    _, text = site.key(limits=KeyLimits(max_body=1024))
    first, second = site.clients(text)
    for body in (b"x" * 1025, iter([b"x" * 600] * 4)):
        answer = first.post("/v1/chat/completions", content=body)
        assert (answer.status_code, code(answer)) == (413, "input.too_large")
    assert first.post("/v1/chat/completions", content=b"x" * 1024).status_code == 400
    _, unbound = site.key()
    _, second = site.clients(unbound)
    for body in (b"x" * 2049, iter([b"x" * 600] * 4)):
        assert second.post("/v1/chat/completions", content=body).status_code == 413


def preflight(client: httpx.Client, origin: str) -> httpx.Response:
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-os",
    }
    return client.options("/v1/chat/completions", headers={"origin": origin, **asks})


def test_allowed_origins_may_call(site: Site) -> None:
    client, _ = site.clients(site.key()[1])
    answer = preflight(client, PAGE)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    answer = client.get("/v1/models", headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "Origin"


def test_other_origins_may_not_call(site: Site) -> None:
    client, _ = site.clients(site.key()[1])
    answer = preflight(client, "https://evil.example.com")
    assert (answer.status_code, code(answer)) == (403, "auth.origin")
    answer = client.get("/v1/models", headers={"origin": "https://evil.example.com"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_key_is_bound_to_its_origins(site: Site) -> None:
    mine = "http://127.0.0.1:3000"
    _, text = site.key(limits=KeyLimits(origins=(mine,)))
    client, _ = site.clients(text)
    wait_for(lambda: preflight(client, mine), 15, true=lambda a: a.status_code == 204)
    answer = client.get("/v1/models", headers={"origin": mine})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, mine)
    answer = client.get("/v1/models", headers={"origin": PAGE})
    assert (answer.status_code, code(answer)) == (403, "auth.origin")
    assert client.get("/v1/models").status_code == 200, "a program sends no origin"


def test_every_response_has_a_request_id_and_no_server_banner(site: Site) -> None:
    client, _ = site.clients(site.key()[1])
    for path in ("/v1/models", "/v1/nowhere", "/nowhere", "/v1/messages"):
        answer = client.get(path, headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers
    assert client.get("/v1/models").headers["cache-control"] == "no-store"
    assert client.get("/v1/messages").headers["request-id"].startswith("req_")


def test_official_clients_raise_our_errors(site: Site) -> None:
    """The errors have the clients' own classes, our code and the request's id."""
    _, submitter = site.key(scopes=("submit",))
    _, slow = site.key(limits=KeyLimits(rpm=1))
    at = {"x-forwarded-for": "10.1.1.1"}
    made: list[openai.OpenAI | anthropic.Anthropic] = []

    def asking(key: str) -> tuple[openai.OpenAI, anthropic.Anthropic]:
        one = openai.OpenAI(base_url=f"{site.first.url}/v1", api_key=key, default_headers=at, max_retries=0)
        two = anthropic.Anthropic(base_url=site.first.url, api_key=key, default_headers=at, max_retries=0)
        made.extend((one, two))
        return one, two

    for key, word, theirs, others in (
        ("gq_none", "auth.key_invalid", openai.AuthenticationError, anthropic.AuthenticationError),
        (submitter, "auth.scope", openai.PermissionDeniedError, anthropic.PermissionDeniedError),
        (slow, "key.rate", openai.RateLimitError, anthropic.RateLimitError),
    ):
        one, two = asking(key)
        if key == slow:
            one.models.list()
        with pytest.raises(theirs) as openais:
            one.models.list()
        assert openais.value.code == word
        assert openais.value.request_id == openais.value.body["request_id"]  # type: ignore[index]
        with pytest.raises(others) as anthropics:
            two.models.list()
        assert word in str(anthropics.value)
    for client in made:
        client.close()


def test_a_background_response_belongs_to_its_agent(site: Site) -> None:
    (_, ann), (_, bob), (_, operator) = site.key("ann"), site.key("bob"), site.key("op", scopes=("operate",))
    _, reader = site.key("reader", scopes=("read-all",))
    body = {"model": "any", "input": "hi", "background": True}
    made = site.clients(ann)[0].post("/v1/responses", json=body, headers={"x-gridq-wait-for-seat": "1"})
    assert made.status_code == 200, made.text
    path = f"/v1/responses/{made.json()['id']}"
    for client in site.clients(ann):
        assert client.get(path).json()["status"] == "queued"
        assert client.get(path).json()["id"] == made.json()["id"]
    assert site.clients(reader)[1].get(path).status_code == 200
    assert site.clients(reader)[1].post(f"{path}/cancel").status_code == 403
    for method, where in (
        ("GET", path),
        ("GET", f"{path}?stream=true"),
        ("POST", f"{path}/cancel"),
        ("DELETE", path),
    ):
        answer = site.clients(bob)[1].request(method, where)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job.not_found")
        assert site.first.http.request(method, where).status_code == 401
    assert site.clients(operator)[1].post(f"{path}/cancel").json()["status"] == "cancelled"
    assert site.clients(ann)[1].delete(path).json()["deleted"] is True
    assert site.clients(ann)[0].get(path).status_code == 404
