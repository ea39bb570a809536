"""The caller of a request, read from its headers, and the caller's rights."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.requests import Request

from gridq.errors import AuthError, GridError, OriginRefused, TooManyAttempts
from gridq.gateway.auth.caller import (
    FORWARDING_HEADERS,
    Authenticator,
    Caller,
    read_key,
    require_worker_secret,
)
from gridq.gateway.auth.failed_attempts import BURST
from gridq.gateway.options import GatewayOptions


def request(
    options: GatewayOptions | None = None, app: Any = None, *, keys: bool = False, **headers: str
) -> Request:
    async def call(function: Any) -> Any:
        return function()

    there = SimpleNamespace(exists=lambda key: int(keys and key == "api_keys"))
    scripts = SimpleNamespace(client=there, keys=lambda name: name)
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    grid: Any = SimpleNamespace(
        options=options or GatewayOptions(), client=SimpleNamespace(scripts=scripts), call=call
    )
    app = app or SimpleNamespace(state=SimpleNamespace(grid=grid, authenticator=Authenticator(grid)))
    return Request({"type": "http", "headers": raw, "app": app, "client": ("9.9.9.9", 1), "path": "/workers"})


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"accept": "*/*"}, ""),
        ({"authorization": "Bearer gq_a"}, "gq_a"),
        ({"authorization": "bearer  gq_a "}, "gq_a"),
        ({"x_api_key": " gq_b "}, "gq_b"),
        ({"authorization": "Bearer gq_a", "x_api_key": "gq_b"}, "gq_a"),
        ({"authorization": "Bearer sk-vendor", "x_api_key": "gq_b"}, "gq_b"),
        ({"authorization": "Bearer gq_a", "x_api_key": "sk-vendor"}, "gq_a"),
        ({"authorization": "Bearer sk-vendor", "x_api_key": "sk-other"}, "sk-vendor"),
        ({"authorization": "Bearer ", "x_api_key": "gq_b"}, "gq_b"),
        ({"authorization": "Basic Z3E=", "x_api_key": "gq_b"}, "gq_b"),
        ({"authorization": "gq_a"}, ""),
    ],
)
def test_the_key_is_read_from_either_header(headers: dict[str, str], key: str) -> None:
    assert read_key(request(None, **headers)) == key


def test_a_scope_decides_which_jobs_a_caller_may_see_and_cancel() -> None:
    usual = Caller("ann", "k", frozenset(("submit", "read")))
    all_readers = Caller("ann", "k", frozenset(("read-all",)))
    operator = Caller("ann", "k", frozenset(("operate",)))
    anonymous = Caller("default")
    rights = [[c.may_see("ann"), c.may_see("bob"), c.may_cancel("ann"), c.may_cancel("bob")] for c in
            (usual, all_readers, operator, anonymous)]  # fmt: skip
    assert rights == [
        [True, False, True, False],
        [True, True, True, False],
        [True, True, True, True],
        [True, True, True, True],
    ]


SECRET = GatewayOptions(host="0.0.0.0", worker_secret=SecretStr("the grid's secret"))


def test_workers_need_the_secret() -> None:
    asyncio.run(require_worker_secret(request(SECRET, x_grid_secret="the grid's secret")))
    first = request(SECRET, x_grid_secret="another")
    for number in range(BURST + 1):
        with pytest.raises(GridError) as caught:
            asyncio.run(require_worker_secret(request(app=first.app, x_grid_secret="another")))
        assert type(caught.value) is (AuthError if number < BURST else TooManyAttempts)
        assert "secret" not in str(caught.value.details.get("expected", "")).replace(
            "GRIDQ_GATEWAY_WORKER_SECRET", ""
        )
    for secret in ("", "é", "the grid's secret "):
        with pytest.raises(GridError):
            asyncio.run(require_worker_secret(request(SECRET, x_grid_secret=secret)))


def test_invalid_keys_do_not_delay_workers_of_the_same_address() -> None:
    worker_request = request(SECRET, x_grid_secret="the grid's secret")
    for _ in range(2 * BURST):
        worker_request.app.state.authenticator.failed_keys.record("9.9.9.9")
    asyncio.run(require_worker_secret(worker_request))


def test_without_a_secret_only_local_workers_may_enrol() -> None:
    asyncio.run(require_worker_secret(request(host="127.0.0.1:8080")))
    with pytest.raises(OriginRefused):
        asyncio.run(require_worker_secret(request(host="evil.example.com")))
    with pytest.raises(AuthError):
        asyncio.run(require_worker_secret(request(GatewayOptions(host="0.0.0.0"), host="127.0.0.1:8080")))
    with pytest.raises(AuthError):
        asyncio.run(require_worker_secret(request(keys=True, host="127.0.0.1:8080")))


@pytest.mark.parametrize("header", FORWARDING_HEADERS)
def test_without_a_secret_workers_may_not_come_through_a_proxy(header: str) -> None:
    with pytest.raises(OriginRefused, match="proxy"):
        asyncio.run(
            require_worker_secret(request(host="127.0.0.1:8080", **{header.replace("-", "_"): "203.0.113.9"}))
        )
