"""Pools of connections to whichever server the sentinels call the primary."""

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

ASKED = 2.0
"""Seconds that one sentinel may take to answer before the next is asked."""


class Pool(SentinelConnectionPool):
    """redis-py's, whose connections to the sentinels end with those to the server."""

    def close(self) -> None:
        super().close()
        self.sentinel_manager.close()


class BoundedPool(Pool, redis.BlockingConnectionPool):
    """At most `max_connections`; whoever needs one more waits up to `timeout` seconds."""


class AsyncPool(asynchronous.SentinelConnectionPool):
    """As `Pool`."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class AsyncBoundedPool(AsyncPool, redis.asyncio.BlockingConnectionPool):
    """As `BoundedPool`."""


def pool(
    found: Sentinels, options: Mapping[str, Any], *, bounded: bool, **bounds: Any
) -> redis.ConnectionPool:
    """A pool of connections to the primary. `options` are redis-py's of a connection, `bounds` those of a
    pool; who needs one more than a `bounded` one may have waits for it.
    """
    kind = BoundedPool if bounded else Pool
    manager = Sentinel(  # type: ignore[no-untyped-call]
        found.hosts, sentinel_kwargs=asking(found), **_login(found), **options
    )
    made: redis.ConnectionPool = manager.master_for(  # type: ignore[no-untyped-call]
        found.name, connection_pool_class=kind, **bounds, **secure(found)
    ).connection_pool
    return made


def async_pool(
    found: Sentinels, options: Mapping[str, Any], *, bounded: bool, **bounds: Any
) -> redis.asyncio.ConnectionPool:
    """The same for asyncio."""
    kind = AsyncBoundedPool if bounded else AsyncPool
    asked = {**asking(found), "retry": redis.asyncio.retry.Retry(NoBackoff(), 0)}
    manager = asynchronous.Sentinel(  # type: ignore[no-untyped-call]
        found.hosts, sentinel_kwargs=asked, **_login(found), **options
    )
    made: redis.asyncio.ConnectionPool = manager.master_for(
        found.name, connection_pool_class=kind, **bounds, **secure(found)
    ).connection_pool
    return made


def asking(found: Sentinels) -> dict[str, Any]:
    """redis-py's options of the connections to the sentinels themselves: one that is away must not keep
    anybody from asking the next.
    """
    options: dict[str, Any] = {
        "socket_timeout": ASKED,
        "socket_connect_timeout": ASKED,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
    }
    if found.sentinel_user is not None:
        options["username"] = found.sentinel_user
    if found.sentinel_password is not None:
        options["password"] = found.sentinel_password
    return options | secure(found)


def secure(found: Sentinels) -> dict[str, Any]:
    """redis-py's options for TLS, none without it."""
    if found.ssl is None:
        return {}
    return {"ssl": True, **certificates(found.ssl)}


def certificates(options: Mapping[str, str]) -> dict[str, Any]:
    """The ssl_… options of a URL as redis-py wants them; certificates are verified unless they say no."""
    made: dict[str, Any] = {"ssl_cert_reqs": "required", **options}
    made["ssl_cert_reqs"] = made["ssl_cert_reqs"].lower().removeprefix("cert_")
    if "ssl_check_hostname" in made:
        made["ssl_check_hostname"] = made["ssl_check_hostname"].lower() in ("true", "1", "yes")
    return made


def _login(found: Sentinels) -> dict[str, Any]:
    login = {"username": found.user, "password": found.password}
    return {"db": found.db, **{name: text for name, text in login.items() if text is not None}}
