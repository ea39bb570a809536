"""Connections to the server, and the one place where its faults become gridq's errors."""

from __future__ import annotations

import re
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
from gridq.store.keepalive import KEEPALIVE
from gridq.store.retrying import AsyncPatient, Patient, tell_losses

MINIMUM = {"redis": (7, 0), "valkey": (7, 2)}
"""The oldest servers with the script and ACL features that gridq uses."""

CONNECT_TIMEOUT = 5.0
PATIENCE = 5.0
"""Seconds for which a command is tried again where its connection is lost: it outlives a server's restart."""

SUBMITTERS = 64
"""Connections of one client that submits; more threads than that wait for one another."""

UNBOUNDED = 1 << 31
"""Connections of a client that gives no bound: redis-py's own, 100, is a fault for who needs one more."""


def connect(
    url: str | None = None,
    *,
    name: str = "",
    timeout: float = 10,
    retry: bool = True,
    patience: float = PATIENCE,
    most: int | None = None,
) -> redis.Redis:
    """A client of the server at `url` (default `GRIDQ_BROKER_URL`); nothing is sent before its first command.

    `name` is shown by `CLIENT LIST`. No command waits longer than `timeout` seconds for its answer. With
    `retry` a lost connection is made again and the command sent again for about `patience` seconds: a script
    may so run twice and must be written for it. Without it a command is tried twice, at once. `most`: no more
    connections at once; who needs another one waits as long as for a server that does not answer.
    """
    url = _url(url)
    options = _options(url, name, timeout) | {"retry": Patient(patience if retry else 0)}
    found = parse_sentinels(url)
    if found is not None:
        pool = sentinel.pool(found, options, bounded=most is not None, **_bounds(most))
    else:
        kind = redis.ConnectionPool if most is None else redis.BlockingConnectionPool
        pool = kind.from_url(url, **_bounds(most), **options)
    return redis.Redis.from_pool(pool)


def connect_to_submit(url: str | None = None, *, name: str) -> redis.Redis:
    """A client for what is told at once where the server is away: it tries for about a second, waits no
    longer for an answer than for a connection, and opens few connections however many threads share it.
    """
    return connect(url, name=name, timeout=CONNECT_TIMEOUT, patience=1.0, most=SUBMITTERS)


def connect_async(
    url: str | None = None,
    *,
    name: str = "",
    timeout: float = 10,
    retry: bool = True,
    most: int | None = None,
) -> redis.asyncio.Redis:
    """The same as `connect` for asyncio."""
    url = _url(url)
    options = _options(url, name, timeout) | {"retry": AsyncPatient(PATIENCE if retry else 0)}
    found = parse_sentinels(url)
    if found is not None:
        pool: redis.asyncio.ConnectionPool = sentinel.async_pool(
            found, options, bounded=most is not None, **_bounds(most)
        )
    else:
        kind = redis.asyncio.ConnectionPool if most is None else redis.asyncio.BlockingConnectionPool
        pool = kind.from_url(url, **_bounds(most), **options)
    return redis.asyncio.Redis.from_pool(tell_losses(pool))


def _bounds(most: int | None) -> dict[str, Any]:
    """How many connections a pool may have, and how long who needs one more waits for it."""
    return (
        {"max_connections": UNBOUNDED}
        if most is None
        else {"max_connections": most, "timeout": CONNECT_TIMEOUT}
    )


def hurry(client: redis.Redis, timeout: float) -> None:
    """From now on wait at most `timeout` seconds for the server, and try a command no longer: a program that
    ends has no time for a server that is away.
    """
    pool = client.connection_pool
    pool.connection_kwargs["retry"].patience.seconds = 0.0
    wanted: dict[str, Any] = {"socket_timeout": timeout}
    if "path" not in pool.connection_kwargs:
        wanted["socket_connect_timeout"] = timeout
    pool.connection_kwargs.update(wanted)
    pool.disconnect(inuse_connections=False)
    pool.reset()


def now_ms(client: redis.Redis) -> int:
    """The server's clock, in ms since 1970."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def check_server(client: redis.Redis) -> None:
    """Refuse a server that gridq cannot use; called once at the start of every program.

    It asks `HELLO`, which the narrowest ACL of gridq permits and `INFO` is not needed for.

    BrokerUnreachable, BrokerRefused (also a read-only replica), BrokerTooOld, BrokerIsCluster.
    """
    url = _address(client)
    try:
        reply = client.execute_command("HELLO")  # type: ignore[no-untyped-call]
    except faults.ResponseError as exc:
        if "unknown command" in str(exc).lower():
            raise BrokerTooOld(f"The server at {url} is older than Redis 6", _TOO_OLD) from None
        raise translate(exc, url) from exc
    except (faults.RedisError, OSError) as exc:
        raise translate(exc, url) from exc
    about = _text(reply)
    server, version = about.get("server", "redis"), about.get("version", "0")
    if about.get("mode") == "cluster":
        raise BrokerIsCluster(f"The server at {url} is a Redis Cluster", _CLUSTER)
    if _numbers(version) < MINIMUM.get(server, MINIMUM["redis"]):
        raise BrokerTooOld(f"The server at {url} is {server.capitalize()} {version}", _TOO_OLD)
    if about.get("role", "master") != "master":
        raise BrokerRefused(f"The server at {url} is a read-only replica", _REPLICA)


def translate(exc: BaseException, url: str | None = None) -> BrokerError:
    """What `exc`, raised by redis-py, kombu or Celery's result backend, means, with the smallest fix.

    `url` is shown without its password; it defaults to `GRIDQ_BROKER_URL`.
    """
    shown = safe_url(_url(url))
    for fault in _chain(exc):
        if isinstance(fault, BrokerError):
            return fault
        reason = {"reason": _one_line(fault)}
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
        if isinstance(fault, (faults.ConnectionError, faults.TimeoutError, OSError)):
            if (known := _its_grid_is_stopped(shown)) is not None:
                return known
            start = "start the server (`gridq up` starts one with a grid), or set GRIDQ_BROKER_URL"
            return BrokerUnreachable(f"Nothing answers at {shown}", reason | {"fix": start})
    return BrokerError(f"The server at {shown} did not do what was asked", {"reason": _one_line(exc)})


def _its_grid_is_stopped(shown: str) -> BrokerUnreachable | None:
    """What to say where the grid of this home is stopped, and `shown` is its server's address, or the default
    one because none is named; None where the address is the fault.
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
def translated(url: str | None = None) -> Iterator[None]:
    """Within it, every fault of the server or of a publish is raised as a BrokerError.

    >>> with translated():            # doctest: +SKIP
    ...     app.send_task("gridq.run_graph", queue="gridq:router")
    """
    try:
        yield
    except (GridError, BrokenPipeError):
        # WaitTimeout is an OSError too; and of a pipe the clients say so in errors of their own: this one is
        # stdout's, whose reader has seen enough
        raise
    except (faults.RedisError, OSError) as exc:
        raise translate(exc, url) from exc
    except Exception as exc:
        if isinstance(exc, _celerys_faults()):
            raise translate(exc, url) from exc
        raise


def _celerys_faults() -> tuple[type[Exception], ...]:
    """What kombu and Celery raise, as far as they are loaded: a program without them need not load them."""
    homes = {"kombu.exceptions": "KombuError", "celery.exceptions": "BackendError"}
    return tuple(getattr(sys.modules[home], name) for home, name in homes.items() if home in sys.modules)


def safe_url(url: str) -> str:
    """`url` without its password, fit for a log or an error.

    >>> safe_url("redis://:secret@host:6379/0?ssl_password=x")
    'redis://host:6379/0'
    """
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user}@{host}{parts.path}" if user else f"{parts.scheme}://{host}{parts.path}"


def _url(url: str | None) -> str:
    url = settings().broker_url.get_secret_value() if url is None else url
    check_url(url)
    return url


def _options(url: str, name: str, timeout: float) -> dict[str, Any]:
    # RESP2 without CLIENT SETINFO needs the fewest grants in an ACL. There is always a name: its round trip
    # reads TLS 1.3's session tickets, which redis-py takes for a stray answer ("Connection has data") where
    # no login comes.
    options: dict[str, Any] = {
        "protocol": 2,
        "driver_info": None,
        "decode_responses": False,
        "socket_timeout": timeout,
        "client_name": re.sub(r"[^!-~]", "_", name or "gridq"),
    }
    if not url.startswith("unix:"):
        options |= {"socket_connect_timeout": CONNECT_TIMEOUT, **KEEPALIVE}
    return options


def _address(client: redis.Redis) -> str:
    pool = client.connection_pool
    at = pool.connection_kwargs
    if isinstance(pool, SentinelConnectionPool):
        asked = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
        hosts = ",".join(f"{each['host']}:{each['port']}" for each in asked)
        scheme = SENTINELS[issubclass(pool.connection_class, redis.SSLConnection)]
        return f"{scheme}://{hosts}/{pool.service_name}/{at.get('db', 0)}"
    if "path" in at:
        return f"unix://{at['path']}"
    scheme = "rediss" if issubclass(pool.connection_class, redis.SSLConnection) else "redis"
    return f"{scheme}://{at.get('host', 'localhost')}:{at.get('port', 6379)}/{at.get('db', 0)}"


def _text(reply: Any) -> dict[str, str]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_word(key): _word(value) for key, value in pairs}


def _word(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """`exc` with its causes, the innermost first: it knows best what kombu's OperationalError means."""
    found: list[BaseException] = []
    at: BaseException | None = exc
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    yield from reversed(found)


def _one_line(exc: BaseException) -> str:
    text = _SENTINEL.sub("", str(exc))
    return " ".join(text.split()).rstrip(".") or type(exc).__name__


_SENTINEL = re.compile(r"<redis\..*?\)>\)>\)> - ")
"""What redis-py puts before the fault of a sentinel: its own objects, with all their options."""
_TOO_OLD = {
    "expected": "Redis 7.0 or Valkey 7.2, or newer",
    "fix": "upgrade the server",
}
_CLUSTER = {"expected": "one server", "fix": "point GRIDQ_BROKER_URL at a server with `cluster-enabled no`"}
_REPLICA = {"expected": "the primary", "fix": "point GRIDQ_BROKER_URL at the primary"}
