"""Celery's result backend for who waits with `.get()`: it outlives its server, and a connection that is dead
without a word.

Celery's own subscribes to a channel and waits for its message. Where the server is away it gives up after a
few tries, however long the caller would wait; where the connection is dead without a word it waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.backends import redis as base

LOOK = 5.0
"""Seconds between two looks for an answer whose message did not come."""

AWAY = 300.0
"""Seconds for which the server may be away until a caller without a time-out of its own hears of it."""

PAUSE = 0.2
"""Seconds between two tries to connect."""


class Consumer(base.ResultConsumer):  # type: ignore[misc]
    """Waits for answers, with its subscription and by looks of its own."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._looked = time.monotonic()
        self._away: float | None = None

    def drain_events(self, timeout: float | None = None) -> None:
        if self._pubsub is None and self.subscribed_to:
            self._come_back()
        elif time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            self._look()
        super().drain_events(timeout)

    @contextmanager
    def reconnect_on_error(self) -> Iterator[None]:
        try:
            yield
        except self._connection_errors:
            self._come_back()

    def _look(self) -> None:
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
                    raise RuntimeError("the server was away for too long") from exc
                time.sleep(PAUSE)
            else:
                self._away = None


class Backend(base.RedisBackend):  # type: ignore[misc]
    """For `redis://`, `rediss://` and sockets."""

    ResultConsumer = Consumer


class SentinelBackend(base.SentinelBackend):  # type: ignore[misc]
    """For sentinels."""

    ResultConsumer = Consumer
