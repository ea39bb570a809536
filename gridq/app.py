"""The Celery app. Importing it reads no setting and needs no server."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Exchange

from gridq import logs
from gridq.settings import Settings

TRANSPORT = "gridq.transport:Transport"


class Messaging(AMQP):  # type: ignore[misc]
    """Celery's messaging with every queue on the default exchange.

    A message reaches its queue by name alone, so kombu keeps no table of bindings for it: two keys less for
    each queue, neither of which would ever expire, and two round trips less at the first publish.
    """

    default_exchange = Exchange("", "direct")

    def autoexchange(self, name: str) -> Exchange:
        return self.default_exchange


def configure(config: Settings) -> None:
    """Point the app at other settings than this process's `settings()`, as tests do."""
    app.conf.update(server_options(config))
    disconnect()


def disconnect() -> None:
    """Close this thread's connections of the app; it makes new ones when it needs them."""
    backend = app._backend
    if backend is not None:
        # Results of before may outlive it: without a subscription they ask nothing of it when they go.
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
    """The Celery settings that follow from gridq's own: the server, the prefix and the results' life."""
    url = urlsplit(config.broker_url.get_secret_value())
    query = dict(parse_qsl(url.query))
    socket: dict[str, Any] = {
        "socket_timeout": 10.0,
        "socket_connect_timeout": 5.0,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }
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
    return {
        "broker_url": broker,
        "broker_transport": TRANSPORT,
        "broker_transport_options": {
            "global_keyprefix": config.prefix,
            "client_name": "gridq",
            # Bells need no emulated acknowledgement: it costs round trips, and what it would save the sweep
            # rings again.
            "ack_emulation": False,
            "body_encoding": "utf-8",
            "polling_interval": 0.2,
            # How long a publish tries to connect; without them it never gives up.
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


app = Celery("gridq", amqp=Messaging)
app.config_from_object("broker_config.celeryconfig")
logs.connect()
