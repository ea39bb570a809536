"""The Celery app. Importing it reads no setting and needs no server."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.utils import Settings as Configuration
from kombu import Connection, Exchange

from gridq.config.settings import Settings
from gridq.config.urls import Sentinels, parse_sentinels
from gridq.store.connection import KEEPALIVE
from gridq.telemetry import logs

TRANSPORT = "gridq.messaging.transport:Transport"
SENTINEL_TRANSPORT = "gridq.messaging.transport:SentinelTransport"
SOCKET = {"socket_timeout": 10.0, "socket_connect_timeout": 5.0, **KEEPALIVE, "health_check_interval": 10}
"""Timeouts and keepalive of Celery's connections."""

OVERRIDES = (
    "CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND",
)  # fmt: skip
"""Variables by which Celery's environment, or `celery -b`, names another server for all apps."""


class Link(Connection):  # type: ignore[misc]
    """A connection of Celery that retries every few seconds. Kombu's pauses grow to half a minute, during
    which a worker would take no work though its server is back.
    """

    def ensure_connection(
        self,
        errback: Any = None,
        max_retries: int | None = None,
        interval_start: float = 0.5,
        interval_step: float = 0.5,
        interval_max: float = 3,
        **named: Any,
    ) -> Any:
        return super().ensure_connection(
            errback, max_retries, interval_start, interval_step, interval_max, **named
        )


class Messaging(AMQP):  # type: ignore[misc]
    """Celery's messaging with every queue on the default exchange.

    A message reaches its queue by name alone, so kombu keeps no table of bindings for it. That saves two keys
    per queue, which would never expire, and two round trips at the first publish.
    """

    Connection = Link
    default_exchange = Exchange("", "direct")

    def autoexchange(self, name: str) -> Exchange:
        return self.default_exchange


class OneServer(Configuration):  # type: ignore[misc]
    """Celery's configuration without OVERRIDES: wake-ups on one server must not announce work on another."""

    @property
    def broker_url(self) -> Any:
        return self["broker_url"]

    broker_read_url = broker_write_url = broker_url

    @property
    def result_backend(self) -> Any:
        return self["result_backend"]


class GridApp(Celery):  # type: ignore[misc]
    """A Celery app on the server that GRIDQ_BROKER_URL names and on no other."""

    @property
    def conf(self) -> Any:
        """Return the configuration, even if nothing has read it yet."""
        found = super().conf
        object.__setattr__(found, "__class__", OneServer)  # assigning it would set a key
        return found

    def _task_from_fun(self, *args: Any, **options: Any) -> Any:
        self.conf["broker_url"]  # if a setting is wrong, each use of a task says so, and none is half made
        return super()._task_from_fun(*args, **options)


def configure(config: Settings) -> None:
    """Make the app use other settings than this process's `settings()`, as tests do."""
    app.conf.update(server_options(config))
    disconnect()


def disconnect() -> None:
    """Close this thread's connections of the app. It opens new ones when it needs them."""
    backend = app._backend
    if backend is not None:
        # Older results may outlive it: without a subscription they ask nothing of it when they are discarded.
        backend.result_consumer.stop()
        backend.result_consumer._pubsub = None
        backend.client.connection_pool.disconnect()
    if app._pool is not None:
        app._pool.force_close_all()
    app._pool = None
    app.amqp._producer_pool = None
    app._backend_cache = None
    app._local = threading.local()


def server_options(config: Settings) -> dict[str, Any]:
    """Return the Celery settings that follow from gridq's own: server, prefix, lifetime of results."""
    found = parse_sentinels(config.get_broker_url())
    if found is not None:
        return _of_sentinels(config, found)
    url = urlsplit(config.get_broker_url())
    query = dict(parse_qsl(url.query))
    socket: dict[str, Any] = dict(SOCKET)
    if url.scheme == "unix":
        database = query.get("db", "0")
        login = url.netloc[: url.netloc.rfind("@") + 1]
        broker = f"redis://{login}localhost/{database}"
        backend = f"redis+socket://{login}{url.path}?virtual_host={database}"
        socket = {"socket_timeout": 10.0, "health_check_interval": 10, "unix_path": url.path}
    else:
        secure = {name: value for name, value in query.items() if name.startswith("ssl_")}
        if url.scheme == "rediss":
            # Without it kombu accepts any certificate, and the result backend refuses the URL.
            secure.setdefault("ssl_cert_reqs", "CERT_REQUIRED")
        broker = f"{url.scheme}://{url.netloc}/{query.get('db') or url.path.strip('/') or '0'}"
        broker = backend = f"{broker}?{urlencode(secure)}" if secure else broker
    return _options(config, broker, backend, socket)


def _of_sentinels(config: Settings, found: Sentinels) -> dict[str, Any]:
    """Return the same if sentinels know the primary. Flower accepts redis:// only, so the URL names the
    first sentinel, and the transport gets all of them.
    """
    from gridq.store.sentinel import certificate_options, sentinel_options

    login = ":".join(quote(part or "", safe="") for part in (found.user, found.password))
    login = f"{login}@" if found.password else ""
    hosts = [f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in found.hosts]
    broker = f"redis://{login}{hosts[0]}/{found.db}"
    backend = ";".join(f"sentinel://{login}{host}/{found.db}" for host in hosts)
    watched = {"master_name": found.name, "sentinel_kwargs": sentinel_options(found)}
    made = _options(config, broker, backend, {**SOCKET, **watched, "sentinels": found.hosts})
    made["broker_transport"] = SENTINEL_TRANSPORT
    made["result_backend_transport_options"] |= watched
    if found.ssl is not None:
        made["broker_use_ssl"] = made["redis_backend_use_ssl"] = certificate_options(found.ssl)
    return made


def _options(config: Settings, broker: str, backend: str, socket: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that all kinds of servers share. `socket`: options of the broker's connections."""
    return {
        "broker_url": broker,
        "broker_transport": TRANSPORT,
        "broker_transport_options": {
            "global_keyprefix": config.prefix,
            "client_name": "gridq",
            # Wake-ups need no emulated acknowledgement: it costs round trips, and the sweep replaces a lost
            # wake-up anyway.
            "ack_emulation": False,
            "body_encoding": "utf-8",
            "polling_interval": 0.2,
            # How long publishing tries to connect; without these it never gives up.
            "max_retries": 2,
            "interval_start": 0,
            "interval_step": 0.1,
            "interval_max": 0.2,
            **socket,
        },
        "result_backend": backend,
        "result_backend_transport_options": {
            "global_keyprefix": config.prefix,
            "retry_policy": {
                "max_retries": 20,
                "interval_start": 0,
                "interval_step": 0.1,
                "interval_max": 0.5,
            },
        },
        "result_expires": config.result_ttl,
    }


app = GridApp("gridq", amqp=Messaging, control="gridq.messaging.remote_control:JobControl")
app.loader.override_backends = {
    "redis": "gridq.messaging.result_backend:Backend",
    "rediss": "gridq.messaging.result_backend:Backend",
    "sentinel": "gridq.messaging.result_backend:SentinelBackend",
}
app.config_from_object("broker_config.celeryconfig")
logs.connect()
