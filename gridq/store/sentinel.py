"""Pools of connections to the server that the sentinels call the primary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio
from redis.asyncio import sentinel as asynchronous
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from gridq.config.urls import Sentinels

TIMEOUT_SECONDS = 2.0
"""The time in which a sentinel must answer before the next one is tried."""


class Pool(SentinelConnectionPool):
    """A pool that also closes its connections to the sentinels."""

    def close(self) -> None:
        super().close()
        self.sentinel_manager.close()


class BoundedPool(Pool, redis.BlockingConnectionPool):
    """A pool of at most `max_connections`; the next one waits up to `timeout` seconds."""


class AsyncPool(asynchronous.SentinelConnectionPool):
    """The same as `Pool` for asyncio."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class AsyncBoundedPool(AsyncPool, redis.asyncio.BlockingConnectionPool):
    """The same as `BoundedPool` for asyncio."""


def build_pool(
    found: Sentinels, options: Mapping[str, Any], *, bounded: bool, **bounds: Any
) -> redis.ConnectionPool:
    """Return a pool of connections to the primary.

    `options` are redis-py's for a connection, `bounds` those for a pool. A `bounded` pool makes the next one
    wait.
    """
    kind = BoundedPool if bounded else Pool
    manager = Sentinel(  # type: ignore[no-untyped-call]
        found.hosts, sentinel_kwargs=sentinel_options(found), **_login(found), **options
    )
    pool: redis.ConnectionPool = manager.master_for(  # type: ignore[no-untyped-call]
        found.name, connection_pool_class=kind, **bounds, **tls_options(found)
    ).connection_pool
    return pool


def build_async_pool(
    found: Sentinels, options: Mapping[str, Any], *, bounded: bool, **bounds: Any
) -> redis.asyncio.ConnectionPool:
    """Return the same for asyncio."""
    kind = AsyncBoundedPool if bounded else AsyncPool
    to_sentinels = {**sentinel_options(found), "retry": redis.asyncio.retry.Retry(NoBackoff(), 0)}
    manager = asynchronous.Sentinel(  # type: ignore[no-untyped-call]
        found.hosts, sentinel_kwargs=to_sentinels, **_login(found), **options
    )
    pool: redis.asyncio.ConnectionPool = manager.master_for(
        found.name, connection_pool_class=kind, **bounds, **tls_options(found)
    ).connection_pool
    return pool


def sentinel_options(found: Sentinels) -> dict[str, Any]:
    """Return redis-py's options for connections to sentinels. One that is away must not delay the next."""
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT_SECONDS,
        "socket_connect_timeout": TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
    }
    if found.sentinel_user is not None:
        options["username"] = found.sentinel_user
    if found.sentinel_password is not None:
        options["password"] = found.sentinel_password
    return options | tls_options(found)


def tls_options(found: Sentinels) -> dict[str, Any]:
    """Return redis-py's options for TLS, none without it."""
    if found.ssl is None:
        return {}
    return {"ssl": True, **certificate_options(found.ssl)}


def certificate_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the ssl_… options of a URL for redis-py. Certificates are verified unless they say no."""
    found: dict[str, Any] = {"ssl_cert_reqs": "required", **options}
    found["ssl_cert_reqs"] = found["ssl_cert_reqs"].lower().removeprefix("cert_")
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = found["ssl_check_hostname"].lower() in ("true", "1", "yes")
    return found


def _login(found: Sentinels) -> dict[str, Any]:
    login = {"username": found.user, "password": found.password}
    return {"db": found.db, **{name: text for name, text in login.items() if text is not None}}
