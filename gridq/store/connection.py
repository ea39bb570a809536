"""Connections to the server, and the only place where its faults become gridq's errors."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis import exceptions as faults
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from gridq.config.home import find_stopped_port
from gridq.config.settings import DEFAULT_BROKER_URL, settings
from gridq.config.urls import SENTINELS, check_url, parse_sentinels
from gridq.errors import (
    BrokerError,
    BrokerIsCluster,
    BrokerRefused,
    BrokerTooOld,
    BrokerUnreachable,
    GridError,
)
from gridq.store import sentinel
from gridq.store.redis_retries import (
    AsyncReplyParser,
    AsyncTimedRetry,
    ReplyParser,
    ServerNotReady,
    TimedRetry,
    report_losses,
)

MIN_VERSIONS = {"redis": (7, 0), "valkey": (7, 2)}
"""The oldest servers with the script and ACL features that gridq uses."""

CONNECT_TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 5.0
"""The time for which a command is repeated if its connection is lost: a server restarts sooner."""

_SOCKET_OPTIONS = {"TCP_USER_TIMEOUT": 3000, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

KEEPALIVE: dict[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value for name, value in _SOCKET_OPTIONS.items() if hasattr(socket, name)
    },
}
"""Options by which the kernel soon gives up a connection whose other end is gone silently.

An idle connection is probed after ten seconds. Data may stay unacknowledged for three: when a silent network
comes back, TCP goes on with its next retransmission, which may be as far off as the silence was long, and a
lease does not wait. A server that is only slow still acknowledges.
"""

MAX_SUBMIT_CONNECTIONS = 64
"""Connections of one client that submits. More threads wait for one another."""

UNLIMITED_CONNECTIONS = 1 << 31
"""Connections of a client without a limit. redis-py's default, 100, raises an error for one more."""


def connect(
    url: str | None = None,
    *,
    name: str = "",
    timeout: float = 10,
    retry: bool = True,
    retry_seconds: float = RETRY_SECONDS,
    max_connections: int | None = None,
) -> redis.Redis:
    """Return a client of the server at `url` (default `GRIDQ_BROKER_URL`). It sends nothing before its first
    command.

    `name` is shown by `CLIENT LIST`. No command waits longer than `timeout` seconds for its reply. With
    `retry`, a lost connection is replaced and the command repeated for about `retry_seconds`: a script may
    run twice and must be written for it. Without it, a command is tried twice, at once. If `max_connections`
    are in use, the next one waits as long as for a server that does not answer.
    """
    url = _resolve_url(url)
    options = _build_connection_options(url, name, timeout) | {
        "retry": TimedRetry(retry_seconds if retry else 0),
        "parser_class": ReplyParser,
    }
    found = parse_sentinels(url)
    if found is not None:
        pool = sentinel.build_pool(
            found, options, bounded=max_connections is not None, **_build_pool_options(max_connections)
        )
    else:
        kind = redis.ConnectionPool if max_connections is None else redis.BlockingConnectionPool
        pool = kind.from_url(url, **_build_pool_options(max_connections), **options)
    return redis.Redis.from_pool(pool)


def connect_to_submit(url: str | None = None, *, name: str) -> redis.Redis:
    """Return a client that reports soon that the server is away.

    It repeats a command for about a second, waits no longer for a reply than for a connection, and opens few
    connections however many threads share it.
    """
    return connect(
        url,
        name=name,
        timeout=CONNECT_TIMEOUT_SECONDS,
        retry_seconds=1.0,
        max_connections=MAX_SUBMIT_CONNECTIONS,
    )


def connect_async(
    url: str | None = None,
    *,
    name: str = "",
    timeout: float = 10,
    retry: bool = True,
    max_connections: int | None = None,
) -> redis.asyncio.Redis:
    """Do the same as `connect` for asyncio."""
    url = _resolve_url(url)
    options = _build_connection_options(url, name, timeout) | {
        "retry": AsyncTimedRetry(RETRY_SECONDS if retry else 0),
        "parser_class": AsyncReplyParser,
    }
    found = parse_sentinels(url)
    if found is not None:
        pool: redis.asyncio.ConnectionPool = sentinel.build_async_pool(
            found, options, bounded=max_connections is not None, **_build_pool_options(max_connections)
        )
    else:
        kind = (
            redis.asyncio.ConnectionPool if max_connections is None else redis.asyncio.BlockingConnectionPool
        )
        pool = kind.from_url(url, **_build_pool_options(max_connections), **options)
    return redis.asyncio.Redis.from_pool(report_losses(pool))


def _build_pool_options(max_connections: int | None) -> dict[str, Any]:
    """Return how many connections a pool may have, and how long the next one waits."""
    return (
        {"max_connections": UNLIMITED_CONNECTIONS}
        if max_connections is None
        else {"max_connections": max_connections, "timeout": CONNECT_TIMEOUT_SECONDS}
    )


def shorten_timeouts(client: redis.Redis, timeout: float) -> None:
    """Wait at most `timeout` seconds for the server from now on, and repeat nothing.

    For a program that shuts down and has no time for a server that is away.
    """
    pool = client.connection_pool
    pool.connection_kwargs["retry"].retry_seconds.seconds = 0.0
    pool.connection_kwargs["socket_timeout"] = timeout
    if "path" not in pool.connection_kwargs:
        pool.connection_kwargs["socket_connect_timeout"] = timeout
    pool.disconnect(inuse_connections=False)
    pool.reset()


def now_ms(client: redis.Redis) -> int:
    """Return the server's clock, in ms since 1970."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def check_server(client: redis.Redis) -> None:
    """Raise an error for a server that gridq cannot use. Every program calls it once, at its start.

    It sends `HELLO`, which the narrowest ACL of gridq permits; `INFO` is not needed. Raises
    BrokerUnreachable, BrokerRefused (also for a read-only replica), BrokerTooOld or BrokerIsCluster.
    """
    url = _format_address(client)
    try:
        reply = client.execute_command("HELLO")  # type: ignore[no-untyped-call]
    except faults.ResponseError as exc:
        if "unknown command" in str(exc).lower():
            raise BrokerTooOld(f"The server at {url} is older than Redis 6", _TOO_OLD) from None
        raise translate_error(exc, url) from exc
    except (faults.RedisError, OSError) as exc:
        raise translate_error(exc, url) from exc
    about = _decode_reply(reply)
    server, version = about.get("server", "redis"), about.get("version", "0")
    if about.get("mode") == "cluster":
        raise BrokerIsCluster(f"The server at {url} is a Redis Cluster", _CLUSTER)
    if _parse_version(version) < MIN_VERSIONS.get(server, MIN_VERSIONS["redis"]):
        raise BrokerTooOld(f"The server at {url} is {server.capitalize()} {version}", _TOO_OLD)
    if about.get("role", "master") != "master":
        raise BrokerRefused(f"The server at {url} is a read-only replica", _REPLICA)


def translate_error(exc: BaseException, url: str | None = None) -> BrokerError:
    """Return what an error of redis-py, kombu or Celery's result backend means, with the smallest fix.

    `url` is shown without its password; it defaults to `GRIDQ_BROKER_URL`.
    """
    shown = redact_url(_resolve_url(url))
    for fault in _find_causes(exc):
        if isinstance(fault, BrokerError):
            return fault
        reason = {"reason": _format_reason(fault)}
        text = reason["reason"].upper()
        if isinstance(fault, (faults.MovedError, faults.AskError, faults.ClusterError)):
            return BrokerIsCluster(f"The server at {shown} is a Redis Cluster", reason | _CLUSTER)
        if isinstance(fault, faults.ReadOnlyError):
            return BrokerRefused(f"The server at {shown} is a read-only replica", reason | _REPLICA)
        if isinstance(fault, faults.OutOfMemoryError):
            fix = {"fix": "raise the server's maxmemory or let finished jobs expire"}
            return BrokerRefused(f"The server at {shown} is out of memory", reason | fix)
        if isinstance(fault, faults.NoPermissionError) or "NOPERM" in text:
            fix = {"fix": "grant the command and the key in the server's ACL"}
            return BrokerRefused(f"The server at {shown} does not permit a command", reason | fix)
        if isinstance(
            fault, (faults.AuthenticationError, faults.AuthenticationWrongNumberOfArgsError)
        ) or any(word in text for word in ("NOAUTH", "WRONGPASS", "AUTHENTICATION REQUIRED")):
            fix = {"fix": "put the right password into GRIDQ_BROKER_URL: redis://user:password@host:port/0"}
            return BrokerRefused(f"The server at {shown} refused the login", reason | fix)
        if "DENIED" in text and "PROTECTED MODE" in text:
            fix = {"fix": "set a password on the server (requirepass) and put it into GRIDQ_BROKER_URL"}
            return BrokerRefused(f"The server at {shown} takes no remote connection", reason | fix)
        if "CERTIFICATE" in text or "SSL" in text:
            fix = {"fix": "name the CA that signed the server's certificate: ?ssl_ca_certs=/path/ca.pem"}
            return BrokerUnreachable(f"No trusted TLS connection to {shown}", reason | fix)
        if isinstance(fault, MasterNotFoundError) and "Error" not in str(fault):
            fix = {"fix": "name the primary as the sentinels do (SENTINEL MASTERS), or wait for a fail-over"}
            return BrokerUnreachable(f"The sentinels at {shown} know no primary", reason | fix)
        if isinstance(fault, faults.BusyLoadingError):
            return BrokerUnreachable(
                f"The server at {shown} is still loading its data", reason | {"fix": "wait"}
            )
        if isinstance(fault, ServerNotReady):
            state, remedy = _NOT_READY.get(
                fault.status_code or "", ("cannot execute this command now", "wait")
            )
            return BrokerUnreachable(f"The server at {shown} {state}", reason | {"fix": remedy})
        if isinstance(fault, (faults.ConnectionError, faults.TimeoutError, OSError)):
            if (known := _find_stopped_grid(shown)) is not None:
                return known
            start = "start the server (`gridq up` starts one with a grid), or set GRIDQ_BROKER_URL"
            return BrokerUnreachable(f"Nothing answers at {shown}", reason | {"fix": start})
    return BrokerError(f"The server at {shown} failed in an unexpected way", {"reason": _format_reason(exc)})


def _find_stopped_grid(shown: str) -> BrokerUnreachable | None:
    """Return the error for a stopped grid of this home, None if the address itself is at fault.

    The grid is meant if `shown` is its server's address, or the default address because none is configured.
    """
    try:
        config = settings()
    except GridError:
        return None
    port = find_stopped_port(config.home)
    if port is None:
        return None
    reason = f"nothing answers at {shown}"
    if shown == DEFAULT_BROKER_URL and "broker_url" not in config.model_fields_set:
        reason = f"no other is named, and nothing answers at the default address {shown}"
    elif shown != f"redis://127.0.0.1:{port}/0":
        return None
    fix = "start it by `gridq up`, or name another grid's server by GRIDQ_BROKER_URL"
    return BrokerUnreachable(
        "The grid of this machine is stopped", {"path": str(config.home), "reason": reason, "fix": fix}
    )


@contextmanager
def translate_errors(url: str | None = None) -> Iterator[None]:
    """Raise every fault of the server, or of publishing a message, as a BrokerError.

    >>> with translate_errors():            # doctest: +SKIP
    ...     app.send_task("gridq.run_graph", queue="gridq:router")
    """
    try:
        yield
    except (GridError, BrokenPipeError):
        # WaitTimeout is an OSError too. A broken pipe is that of stdout: redis-py wraps its own.
        raise
    except (faults.RedisError, OSError) as exc:
        raise translate_error(exc, url) from exc
    except Exception as exc:
        if isinstance(exc, _find_celery_errors()):
            raise translate_error(exc, url) from exc
        raise


def _find_celery_errors() -> tuple[type[Exception], ...]:
    """Return the error classes of kombu and Celery, if they are loaded: other programs need not load them."""
    homes = {"kombu.exceptions": "KombuError", "celery.exceptions": "BackendError"}
    return tuple(getattr(sys.modules[home], name) for home, name in homes.items() if home in sys.modules)


def redact_url(url: str) -> str:
    """Return `url` without its password, fit for a log or an error.

    >>> redact_url("redis://:secret@host:6379/0?ssl_password=x")
    'redis://host:6379/0'
    """
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user}@{host}{parts.path}" if user else f"{parts.scheme}://{host}{parts.path}"


def _resolve_url(url: str | None) -> str:
    url = settings().get_broker_url() if url is None else url
    check_url(url)
    return url


def _build_connection_options(url: str, name: str, timeout: float) -> dict[str, Any]:
    # RESP2 without CLIENT SETINFO needs the fewest grants in an ACL. A name is always set: its round trip
    # reads the session tickets of TLS 1.3, which redis-py takes for a stray reply ("Connection has data") if
    # there is no login.
    options: dict[str, Any] = {
        "protocol": 2,
        "driver_info": None,
        "decode_responses": False,
        "socket_timeout": timeout,
        "client_name": re.sub(r"[^!-~]", "_", name or "gridq"),
    }
    if not url.startswith("unix:"):
        options |= {"socket_connect_timeout": CONNECT_TIMEOUT_SECONDS, **KEEPALIVE}
    return options


def _format_address(client: redis.Redis) -> str:
    pool = client.connection_pool
    options = pool.connection_kwargs
    if isinstance(pool, SentinelConnectionPool):
        sentinels = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
        hosts = ",".join(f"{each['host']}:{each['port']}" for each in sentinels)
        scheme = SENTINELS[issubclass(pool.connection_class, redis.SSLConnection)]
        return f"{scheme}://{hosts}/{pool.service_name}/{options.get('db', 0)}"
    if "path" in options:
        return f"unix://{options['path']}"
    scheme = "rediss" if issubclass(pool.connection_class, redis.SSLConnection) else "redis"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"


def _decode_reply(reply: Any) -> dict[str, str]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_decode(key): _decode(value) for key, value in pairs}


def _decode(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _find_causes(exc: BaseException) -> Iterator[BaseException]:
    """Return `exc` with its causes, the innermost first: it says best what kombu's OperationalError means."""
    found: list[BaseException] = []
    at: BaseException | None = exc
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    yield from reversed(found)


def _format_reason(exc: BaseException) -> str:
    text = _SENTINEL.sub("", str(exc))
    return " ".join(text.split()).rstrip(".") or type(exc).__name__


_SENTINEL = re.compile(r"<redis\..*?\)>\)>\)> - ")
"""redis-py's words before the fault of a sentinel: its own objects with all their options."""
_TOO_OLD = {"expected": "Redis 7.0 or Valkey 7.2, or newer", "fix": "upgrade the server"}
_CLUSTER = {"expected": "one server", "fix": "point GRIDQ_BROKER_URL at a server with `cluster-enabled no`"}
_REPLICA = {"expected": "the primary", "fix": "point GRIDQ_BROKER_URL at the primary"}
_NOT_READY = {
    "BUSY": ("is busy with a script", "wait; `SCRIPT KILL` ends a script that has written nothing yet"),
    "MISCONF": ("cannot write its data to disk", "free space on its disk, or read its log"),
    "NOREPLICAS": ("has too few replicas", "start its replicas, or lower min-replicas-to-write"),
    "MASTERDOWN": ("is a replica without its primary", "wait for the fail-over, or start the primary"),
}
"""The meaning of a ServerNotReady by its code, and the smallest fix."""
