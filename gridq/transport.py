"""Kombu's Redis transport, guarded: a worker outlives its server, and a lost connection re-runs nothing.

Named by the setting `broker_transport`; the broker's URL stays `redis://`, which Flower insists on.
"""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis as base
from redis import UnixDomainSocketConnection
from redis.exceptions import ConnectionError as LostConnection

log = logging.getLogger(__name__)


class Channel(base.Channel):  # type: ignore[misc]
    """A channel that never restores and that fails as a connection, not as a program, when it is closed."""

    do_restore = False
    """Kombu's puts the message of a task that still runs back into its queue when a connection drops.
    What a message asked for stands in the store, where the sweep finds it."""

    unix_path = ""
    """The path of the server's Unix socket: a URL that says it to kombu would bypass `broker_transport`."""

    from_transport_options = (*base.Channel.from_transport_options, "unix_path")

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # When the server goes while a late-acknowledged task runs, Celery clears the transport's client and
        # then closes the channel once more, which asks here for `client.hostname`: an AttributeError would
        # end the worker.
        if self.connection is None or self.connection.client is None:
            raise LostConnection("the channel is closed")
        if self.unix_path:
            self.connection_class = UnixDomainSocketConnection
        params: dict[str, Any] = super()._connparams(asynchronous)
        if self.unix_path:
            params = self._filter_tcp_connparams(**params)
            for name in ("host", "port", "socket_connect_timeout"):
                params.pop(name, None)
            params["path"] = self.unix_path
        return params

    def _brpop_read(self, **options: Any) -> bool | None:
        # Kombu lets what is no message end the worker, and the next one takes the next such message.
        try:
            received: bool | None = super()._brpop_read(**options)
        except (ValueError, TypeError, LookupError, AttributeError):
            log.exception("a message that cannot be read is dropped")
            return True
        return received


class Transport(base.Transport):  # type: ignore[misc]
    """The transport that `broker_transport = "gridq.transport:Transport"` names."""

    Channel = Channel
