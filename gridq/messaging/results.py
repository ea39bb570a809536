"""Celery's result backend for who waits with `.get()`: it outlives its server, and a connection that is dead
without a word.

Celery's own subscribes to a channel and waits for its message. Where the server is away it gives up after a
few tries, however long the caller would wait; where the connection is dead without a word it waits for ever.
What it cannot bear is raised as any other fault of the server: as a BrokerError.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.backends import redis as base

from gridq.jobs.server_outage import AWAY, PAUSE
from gridq.store.connection import translate, translated

LOOK = 5.0
"""Seconds between two looks for an answer whose message did not come."""


class Consumer(base.ResultConsumer):  # type: ignore[misc]
    """Waits for answers, with its subscription and by looks of its own."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._looked = time.monotonic()
        self._away: float | None = None

    def on_wait_for_pending(self, result: Any, **named: Any) -> None:
        # Celery's own asks for a few seconds and then fails; here `drain_events` asks again.
        self._away = None
        self._look()

    def drain_events(self, timeout: float | None = None) -> None:
        if self._pubsub is None and self.subscribed_to:
            self._come_back()
        elif time.monotonic() - self._looked > LOOK:
            self._look()
        super().drain_events(timeout)

    def cancel_for(self, task_id: str) -> None:
        """Take a subscription back; called as a result goes, be it by the garbage collector.

        A subscription goes with its connection. Where that is gone there is nothing to take back, and
        Celery's own would connect for it: to a server that may be away, or for a consumer that goes itself
        and leaves that connection to nobody.
        """
        pubsub = self._pubsub
        if pubsub is None or (pubsub.connection is not None and pubsub.connection.is_connected):
            super().cancel_for(task_id)
            return
        key = self._get_key_for_task(task_id)
        self.subscribed_to.discard(key)
        pubsub.channels.pop(pubsub.encoder.encode(key), None)

    @contextmanager
    def reconnect_on_error(self) -> Iterator[None]:
        try:
            yield
        except self._connection_errors:
            self._come_back()

    def _look(self) -> None:
        self._looked = time.monotonic()
        with self._locked():
            keys = list(self.subscribed_to)
            with self.reconnect_on_error():
                for meta in self.backend.client.mget(keys) if keys else ():
                    if meta:
                        self.on_state_change(self._decode_result(meta), None)

    def _come_back(self) -> None:
        """Connect anew, once: the caller's loop sees to its time-out, and calls again."""
        with self._locked():
            try:
                self._reconnect_pubsub()
            except self._connection_errors as exc:
                self._pubsub = None
                now = time.monotonic()
                self._away = now if self._away is None else self._away
                if now - self._away > AWAY:
                    raise translate(exc) from exc
                time.sleep(PAUSE)
            else:
                self._away = None


class Backend(base.RedisBackend):  # type: ignore[misc]
    """For `redis://`, `rediss://` and sockets."""

    ResultConsumer = Consumer

    def get_task_meta(self, task_id: str, cache: bool = True) -> dict[str, Any]:
        """What is known of a task now. BrokerError: it cannot be asked."""
        with translated():
            meta: dict[str, Any] = super().get_task_meta(task_id, cache)
        return meta


class SentinelBackend(Backend, base.SentinelBackend):  # type: ignore[misc]
    """For sentinels."""
