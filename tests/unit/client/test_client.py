"""The class of client that a URL leads to, and the surface that all clients share."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

import gridq
from gridq.client import (
    AsyncBrokerClient,
    AsyncClient,
    AsyncGatewayClient,
    BaseAsyncClient,
    BaseClient,
    BrokerClient,
    Client,
    GatewayClient,
)
from gridq.config.settings import Settings, settings
from gridq.errors import ConfigError, KeyInvalid

SERVERS = ["redis://127.0.0.1:1/0", "rediss://127.0.0.1:1/0", "unix:///nowhere.sock", "sentinel://a,b/main"]
GATEWAYS = ["http://127.0.0.1:1", "HTTPS://grid.example/", "http://127.0.0.1:1,http://127.0.0.1:2/"]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("GRIDQ_URL", raising=False)
    monkeypatch.delenv("GRIDQ_KEY", raising=False)
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("url", "way"),
    [(None, BrokerClient), *((u, BrokerClient) for u in SERVERS), *((u, GatewayClient) for u in GATEWAYS)],
)
def test_the_url_decides_the_class(url: str | None, way: type[Client]) -> None:
    with Client(url) as client:
        assert type(client) is way
        assert isinstance(client, gridq.Client)
    other = AsyncClient(url)
    assert type(other) is (AsyncGatewayClient if way is GatewayClient else AsyncBrokerClient)
    assert isinstance(other, gridq.AsyncClient)
    asyncio.run(other.close())


def test_every_client_is_an_instance_of_client_and_nothing_else_is() -> None:
    with BrokerClient("redis://127.0.0.1:1/0") as client:
        assert isinstance(client, Client)
        assert not isinstance(client, AsyncClient)
    assert issubclass(GatewayClient, Client)
    assert issubclass(AsyncGatewayClient, AsyncClient)
    for other in (object(), 1, Client):
        assert not isinstance(other, Client)
        assert not isinstance(other, BaseClient)


def test_without_a_url_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("GRIDQ_KEY", "gq_a_b")
    with Client() as client:
        assert isinstance(client, GatewayClient)
        request = client.gateways.build_request(0, _call("/jobs"))
        assert str(request.url) == "http://127.0.0.1:1/jobs"
        assert request.headers["authorization"] == "Bearer gq_a_b"
    with Client("redis://127.0.0.1:1/0") as client:  # what is given goes before
        assert isinstance(client, BrokerClient)
    with pytest.raises(ConfigError) as caught:  # never the default address: that is not the gateway's grid
        BrokerClient()
    assert (caught.value.path, bool(caught.value.fix)) == ("GRIDQ_BROKER_URL", True)
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://127.0.0.1:1/3")
    settings.cache_clear()
    with BrokerClient() as client:  # the class that you name wins
        assert client.url == "redis://127.0.0.1:1/3"


def test_given_settings_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_URL", "http://127.0.0.1:1")
    with Client(config=Settings(url=None)) as client:
        assert isinstance(client, BrokerClient)
    monkeypatch.delenv("GRIDQ_URL")
    with Client(config=Settings(url="http://127.0.0.1:2")) as client:
        assert isinstance(client, GatewayClient)


def test_a_given_key_overrides_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_KEY", "gq_a_environment")
    with Client("http://127.0.0.1:1", "gq_a_given") as client:
        assert isinstance(client, GatewayClient)
        assert client.gateways.build_request(0, _call("/")).headers["authorization"] == "Bearer gq_a_given"
    with Client("redis://127.0.0.1:1/0", "gq_a_given") as client:
        assert client.config.key == SecretStr("gq_a_given")


@pytest.mark.parametrize("key", ["gq_ä", "gq_a\nb", "gq_a\r\nx-evil: 1"])
def test_a_key_that_no_header_can_hold_is_rejected(key: str) -> None:
    with pytest.raises(KeyInvalid) as caught:
        Client("http://127.0.0.1:1", key)
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://", "host or port is invalid"),
        ("http://h:port", "host or port is invalid"),
        ("http://h:0", "host or port is invalid"),
        ("http://ann:secret@h", "it has a login"),
        ("http://h/?key=secret", "a \\? or a #"),
        ("http://h/#secret", "a \\? or a #"),
        ("http://h,redis://:secret@h", "does not begin with"),
        ("http://h,", "does not begin with"),
        ("http://h secret", "host or port is invalid"),
        ("http://[::1", "host or port is invalid"),
    ],
)
def test_an_invalid_url_is_rejected_without_showing_it(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Client(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://:secret@h/0", "h:8080", "http://h:x"])
def test_a_wrong_setting_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_URL", url)
    with pytest.raises(ConfigError) as caught:
        settings()
    assert caught.value.path == "GRIDQ_URL"
    assert "secret" not in str(caught.value)


def test_every_client_has_every_method_with_the_same_arguments() -> None:
    names = [
        name for name in vars(BaseClient) if not name.startswith("_") and callable(getattr(BaseClient, name))
    ]
    assert len(names) >= 20
    for way in (BrokerClient, GatewayClient):
        for name in names:
            assert _arguments(way, name) == _arguments(BaseClient, name), (way, name)
            assert name == "run" or getattr(way, name) is not getattr(BaseClient, name), (way, name)
    short = [name for name in vars(BaseAsyncClient) if not name.startswith("_")]
    assert {*names} - {"reader"} == {*short} - {"sync"}
    for way in (BaseAsyncClient, AsyncBrokerClient, AsyncGatewayClient):
        for name in {*names} - {"reader"}:
            assert _arguments(way, name) == _arguments(BaseClient, name), (way, name)
    # Each class implements what the base class does not do by its synchronous client.
    undone = [
        name for name in short if "NotImplementedError" in inspect.getsource(vars(BaseAsyncClient)[name])
    ]
    assert {"result", "wait", "stream", "close"} <= {*undone}
    for way in (AsyncBrokerClient, AsyncGatewayClient):
        for name in undone:
            assert getattr(way, name) is not getattr(BaseAsyncClient, name), (way, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Telegraph"):
        gridq.client.Telegraph  # noqa: B018


def _arguments(cls: type, name: str) -> list[str]:
    return list(inspect.signature(getattr(cls, name)).parameters)


def _call(path: str) -> gridq.client.gateway_calls.Call:
    from gridq.client.gateway_calls import Call

    return Call("GET", path)


def test_a_broker_client_loads_no_http_library() -> None:
    program = "import sys, gridq; gridq.Client('redis://127.0.0.1:1/0'); print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
