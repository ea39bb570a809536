"""Celery's result backend, hardened: `.get()` outlasts a server that restarts and a half-open connection.

Celery's own backend subscribes to a channel and waits for its message. Where the server is away it gives up
after a few tries, however long the caller would wait; on a half-open connection it waits for ever. This one
polls too. What it cannot survive is raised as a BrokerError.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery.backends import redis as base
from celery.exceptions import TimeoutError as CeleryTimeout
from redis.exceptions import RedisError

from gridq.errors import WaitTimeout
from gridq.jobs.server_outage import MAX_OUTAGE_SECONDS, RETRY_PAUSE_SECONDS
from gridq.jobs.waiting import build_timeout_error
from gridq.protocol import queue_names
from gridq.seats.registry import has_router, read_live_seats
from gridq.store.connection import translate_error, translate_errors
from gridq.store.keys import Keys
from gridq.store.redis_retries import ReplyParser

POLL_SECONDS = 5.0
"""The time between two polls for an answer whose message did not arrive."""


class Consumer(base.ResultConsumer):  # type: ignore[misc]
    """Waits for answers by subscription and by polling."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._polled_at = time.monotonic()
        self._away_since: float | None = None

    def on_wait_for_pending(self, result: Any, **named: Any) -> None:
        # Celery's own retries for a few seconds and then fails; here `drain_events` polls again.
        self._away_since = None
        self._poll()

    def drain_events(self, timeout: float | None = None) -> None:
        if self._pubsub is None and self.subscribed_to:
            self._reconnect()
        elif time.monotonic() - self._polled_at > POLL_SECONDS:
            self._poll()
        super().drain_events(timeout)

    def cancel_for(self, task_id: str) -> None:
        """Cancel a subscription when its result is discarded, perhaps by the garbage collector.

        A subscription ends with its connection. Where that is gone there is nothing to cancel, and Celery's
        own method would connect for it: to a server that may be away, or for a consumer that is going away
        itself and would leak the connection.
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
            self._reconnect()

    def _poll(self) -> None:
        self._polled_at = time.monotonic()
        with self._locked():
            keys = list(self.subscribed_to)
            with self.reconnect_on_error():
                for meta in self.backend.client.mget(keys) if keys else ():
                    if meta:
                        self.on_state_change(self._decode_result(meta), None)

    def _reconnect(self) -> None:
        """Reconnect once. The caller's loop keeps its time-out and calls again."""
        with self._locked():
            try:
                self._reconnect_pubsub()
            except self._connection_errors as exc:
                self._pubsub = None
                now = time.monotonic()
                self._away_since = now if self._away_since is None else self._away_since
                if now - self._away_since > MAX_OUTAGE_SECONDS:
                    raise translate_error(exc) from exc
                time.sleep(RETRY_PAUSE_SECONDS)
            else:
                self._away_since = None


class ResultTimeout(WaitTimeout, CeleryTimeout):  # type: ignore[misc]
    """WaitTimeout of `.get(timeout=…)`, which is also the error that Celery raises there."""


class Backend(base.RedisBackend):  # type: ignore[misc]
    """The backend for `redis://`, `rediss://` and sockets."""

    ResultConsumer = Consumer

    def wait_for_pending(self, result: Any, timeout: float | None = None, **named: Any) -> Any:
        """Wait for a result. ResultTimeout: it is not there after `timeout` seconds."""
        try:
            return super().wait_for_pending(result, timeout=timeout, **named)
        except CeleryTimeout:
            error = build_timeout_error(result.id, timeout or 0.0, self._explain_wait(result.id))
        if "waits_for" not in error.details:
            error.details["fix"] = (
                f"wait longer: the job continues; gridq job {result.id} says what it waits for"
            )
        raise ResultTimeout(error.message, error.details)

    def _explain_wait(self, job: str) -> str:
        """Return what the job waits for if it needs a router and none is live, else an empty text."""
        keys = Keys(self.app.conf.broker_transport_options["global_keyprefix"])
        with suppress(RedisError):
            if self.client.exists(keys("submitted", job)) and not has_router(
                read_live_seats(self.client, keys)
            ):
                return f"a router to admit it, and {queue_names.NO_ROUTER}"
        return ""

    def get_task_meta(self, task_id: str, cache: bool = True) -> dict[str, Any]:
        """Return what is known of a task now. BrokerError: the server cannot be asked."""
        with translate_errors():
            meta: dict[str, Any] = super().get_task_meta(task_id, cache)
        return meta

    def _create_client(self, **params: Any) -> Any:
        return super()._create_client(**params, parser_class=ReplyParser)


class SentinelBackend(Backend, base.SentinelBackend):  # type: ignore[misc]
    """The backend for sentinels."""
