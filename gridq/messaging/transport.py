"""Kombu's Redis transport, hardened: a worker outlives its server, and a lost connection re-runs nothing.

The setting `broker_transport` names it. The broker's URL stays `redis://`, which Flower insists on, even
if sentinels find the server.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

from kombu.transport import redis as base
from kombu.transport import virtual
from redis import Redis, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import OutOfMemoryError
from redis.sentinel import Sentinel

from gridq.store.redis_retries import ReplyParser

log = logging.getLogger(__name__)

_channels: WeakSet[Any] = WeakSet()
_channels_lock = threading.Lock()

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)
"""What kombu and Celery raise for data that is not a message."""


class HardenedQoS(base.QoS):  # type: ignore[misc]
    """Kombu's list of the messages that are not acknowledged yet.

    It stands on the server for a restore, which gridq's channels do not make: if the server has no memory for
    it, a message is handled all the same.
    """

    def append(self, message: Any, delivery_tag: str) -> None:
        try:
            super().append(message, delivery_tag)
        except OutOfMemoryError:
            virtual.QoS.append(self, message, delivery_tag)


on_arrival: dict[str, Callable[[], Callable[[], None]]] = {}
"""Task name → a function that begins the task's work as soon as a message for it has come, on the consumer's
thread, and returns the rest of the work.
"""


@dataclass(slots=True)
class Begun:
    """Work that began before Celery had the message. Whoever does the rest sets `is_taken`."""

    rest: Callable[[], None]
    is_taken: bool = False


class EagerMessage(virtual.Message):  # type: ignore[misc]
    """A message as kombu makes it, with the work that has begun for it."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **more: Any) -> None:
        super().__init__(payload, channel, **more)
        self.begun: Begun | None = payload.get("begun")


def _begin_and_deliver(
    channel: Any, deliver: Callable[[dict[str, Any]], None], payload: dict[str, Any]
) -> None:
    """Begin the work that a message asks for, then hand the message to kombu.

    The message may not reach its task: kombu writes it to the server first, which may fail, and Celery may
    refuse it. The work that has begun holds a slot, so a new thread then does the rest.

    A message that Celery cannot read, such as a foreign one without an id, is acknowledged. Otherwise a
    worker that has got as many of them as it has slots would receive no more messages.
    """
    begin = on_arrival.get((payload.get("headers") or {}).get("task", ""))
    begun = payload["begun"] = None if begin is None else Begun(begin())
    try:
        deliver(payload)
    except UNREADABLE:
        tag = payload["properties"].get("delivery_tag")
        if isinstance(tag, Hashable) and tag in channel.qos._delivered:
            channel.basic_reject(tag, requeue=False)
        raise
    finally:
        if begun is not None and not begun.is_taken:
            threading.Thread(target=begun.rest, name="without Celery", daemon=True).start()


class HardenedChannel:
    """A mix-in for kombu's channels: they restore no messages, and a failure ends only a connection."""

    do_restore = False
    """Kombu puts the message of a task that still runs back into its queue when a connection drops. Here what
    a message asks for is in the store, where the sweep finds it.
    """

    QoS = HardenedQoS
    Message = EagerMessage

    def __init__(self, *args: Any, **names: Any) -> None:
        super().__init__(*args, **names)
        with _channels_lock:
            _channels.add(self)

    def basic_consume(self, queue: str, *args: Any, **names: Any) -> Any:
        consumer_tag = super().basic_consume(queue, *args, **names)  # type: ignore[misc]
        callbacks = self.connection._callbacks  # type: ignore[attr-defined]
        callbacks[queue] = partial(_begin_and_deliver, self, callbacks[queue])
        return consumer_tag

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # When the server goes away while a late-acknowledged task runs, Celery clears the transport's client
        # and closes the channel once more, which asks for `client.hostname` here: an AttributeError would
        # end the worker.
        connection = self.connection  # type: ignore[attr-defined]
        if connection is None or connection.client is None:
            raise LostConnection("the channel is closed")
        params: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[misc]
        return params | {"parser_class": ReplyParser}

    # A full server refuses to note which queues of Celery's remote control there are, which only replies to
    # `inspect` and the like need. In kombu that ends the worker, whose stages would free the memory.

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        with contextlib.suppress(OutOfMemoryError):
            super()._queue_bind(exchange, routing_key, pattern, queue)  # type: ignore[misc]

    def maybe_refresh_binding_expiry(self) -> None:
        with contextlib.suppress(OutOfMemoryError):
            super().maybe_refresh_binding_expiry()  # type: ignore[misc]

    def _brpop_read(self, **options: Any) -> bool | None:
        # In kombu, data that is no message ends the worker, and the next worker takes the next such data.
        try:
            received: bool | None = super()._brpop_read(**options)  # type: ignore[misc]
        except UNREADABLE:
            log.exception("a message that cannot be read is dropped")
            return True
        return received


class Channel(HardenedChannel, base.Channel):  # type: ignore[misc]
    """A channel to the server that the URL names."""

    unix_path = ""
    """The path of the server's Unix socket. A URL with it would make kombu bypass `broker_transport`."""

    from_transport_options = (*base.Channel.from_transport_options, "unix_path")

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.unix_path:
            self.connection_class = UnixDomainSocketConnection
        params = super()._connparams(asynchronous)
        if self.unix_path:
            params = self._filter_tcp_connparams(**params)
            for name in ("host", "port", "socket_connect_timeout"):
                params.pop(name, None)
            params["path"] = self.unix_path
        return params


class SentinelChannel(HardenedChannel, base.SentinelChannel):  # type: ignore[misc]
    """A channel to the server that sentinels name as the primary.

    Kombu reads the sentinels from a `sentinel://` URL, which Flower refuses: here they are an option.
    """

    sentinels: tuple[tuple[str, int], ...] = ()

    from_transport_options = (*base.SentinelChannel.from_transport_options, "sentinels")

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        params = self._connparams(asynchronous)
        for name in ("host", "port"):
            params.pop(name, None)
        manager = Sentinel(  # type: ignore[no-untyped-call]
            self.sentinels, sentinel_kwargs=self.sentinel_kwargs, **params
        )
        if asynchronous:  # kombu closes them with the channel
            self._async_sentinel_manager = manager
        else:
            self._sentinel_manager = manager
        return manager.master_for(self.master_name, Redis).connection_pool  # type: ignore[no-untyped-call]


class Transport(base.Transport):  # type: ignore[misc]
    """The transport that `broker_transport = "gridq.messaging.transport:Transport"` names."""

    Channel = Channel


class SentinelTransport(base.SentinelTransport):  # type: ignore[misc]
    """The same, with sentinels."""

    Channel = SentinelChannel


def reconnect_consumer() -> None:
    """Close the sockets on which this process consumes, so that it reconnects. Any thread may call it."""
    with _channels_lock:
        found = list(_channels)
    for channel in found:
        if not channel._active_queues:
            continue
        for client in (channel.__dict__.get("client"), channel.__dict__.get("subclient")):
            connection = getattr(client, "connection", None)
            sock = getattr(connection, "_sock", None)
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
