"""Record on the server what one seat's attempts came to, and tell Celery's monitors of it."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from gridq.config.settings import Settings
from gridq.execution.attempt import Attempt
from gridq.execution.outcome import Failed
from gridq.messaging import monitor_events
from gridq.messaging.monitor_events import Monitors
from gridq.store import values
from gridq.store.replies import Claim, Completion
from gridq.store.scripts import Scripts
from gridq.telemetry import narration

log = logging.getLogger(__name__)

T = TypeVar("T")

SERVER_AWAY_MAX_SECONDS = 300.0
"""The time past an attempt's deadline for which its outcome is kept while the server is away."""

RETRY_SECONDS = 0.5
"""The time between two tries while the server is away."""

VALUE_GRACE_MS = 3_600_000
"""The time by which a long output outlives its job's deadline."""


class Recorder:
    """Records the outcomes of one incarnation of one seat. Threads may share it.

    `is_over()` returns whether the session has left the grid: then nothing is retried any more.
    """

    def __init__(
        self,
        scripts: Scripts,
        config: Settings,
        *,
        seat: str,
        incarnation: str,
        monitors: Monitors | None,
        is_over: Callable[[], bool],
    ) -> None:
        self._scripts = scripts
        self._config = config
        self._seat = seat
        self._incarnation = incarnation
        self._monitors = monitors
        self._is_over = is_over

    # -- what an attempt reads and writes while it runs

    def read_value(self, attempt: Attempt, data: bytes) -> bytes | bytearray:
        """Return a stored value, or the value that a stored link points to. RedisError: as for `retry`."""
        return self.retry(attempt, lambda: values.read_buffer(self._scripts.client, self._scripts.keys, data))

    # -- how it ended

    def record_completion(
        self, attempt: Attempt, output: bytes, *, take_next: Callable[[], bool]
    ) -> tuple[int, str, Claim | str]:
        """Record an output and claim the slot's next stage, if `take_next()`.

        Return what `Scripts.complete` returns; -2 also if the attempt's lease lapsed before its pieces were
        written: whoever reads the stream would find an end without an answer. RedisError: the server stayed
        away for too long.
        """
        link, long = output, None
        if len(output) > self._config.inline_value:
            link, long = f"@{attempt.claim.lease}".encode(), output
        nonce = secrets.token_hex(8)
        events = self._completion_events(attempt)

        def complete() -> Completion:
            self._finish_stream(attempt)
            if attempt.lacks_pieces:
                attempt.cancel("lost")
                return Completion(-2, "", "none")
            return self._scripts.complete(
                attempt.claim.lease,
                link,
                used=attempt.usage(),
                rows=json.dumps(attempt.rows, separators=(",", ":")),
                seat=self._seat,
                incarnation=self._incarnation,
                slot=attempt.slot,
                nonce=nonce,
                go_on=take_next(),
                long=long,
                long_ttl_ms=max(attempt.claim.remaining_ms, 0) + VALUE_GRACE_MS,
                events=events,
            )

        return self.retry(attempt, complete)

    def record_failure(self, attempt: Attempt, failed: Failed) -> str:
        """Record a failure. Return how it ended the job, `plain` or `celery`, else an empty string.

        An attempt that is handed back may fail once more when its code stops: only usage that has grown since
        is recorded again. RedisError: the server cannot be reached.
        """
        self._finish_stream(attempt)
        with attempt.reporting:  # whoever comes second waits: a slot whose lease is open would claim it again
            used = attempt.usage()
            again = attempt.reported_usage is not None
            if used == attempt.reported_usage:
                return ""
            rows = attempt.rows if failed.kind != "back" else []
            events = "" if again else self._completion_events(attempt)
            code = failed.code or failed.error.code
            ended = self._scripts.fail(
                attempt.claim.lease,
                failed.kind,
                pause_ms=int(failed.pause_seconds * 1000),
                used=used,
                error=failed.error.to_json(),
                row=json.dumps(rows, separators=(",", ":")) if rows else "",
                seat=self._seat,
                events=events,
                uuid=monitor_events.stage_task_id(attempt.claim, attempt.operation) if events else "",
                why=code,
            )
            attempt.reported_usage = used
        if not again:
            narration.narrate_failure(failed.kind, code, ended)
        return ended if ended in ("celery", "plain") else ""

    def _finish_stream(self, attempt: Attempt) -> None:
        """Wait for the attempt's pieces, which stand before the end of its job."""
        try:
            attempt.finish_stream()
        except ResponseError as exc:  # the outcome counts for more than the last of its stream
            log.warning("pieces of %s are missing in its stream: %s", attempt.path, exc)

    def retry(self, attempt: Attempt, act: Callable[[], T]) -> T:
        """Return `act()`. While the server is away or not ready it is tried again: the outcome may have cost
        money.
        """
        while True:
            try:
                return act()
            except (ConnectionError, TimeoutError) as exc:
                if self._is_over() or time.monotonic() > attempt.deadline + SERVER_AWAY_MAX_SECONDS:
                    raise
                log.warning("%s waits for the server: %s", attempt.path, exc)
                time.sleep(RETRY_SECONDS)

    # -- Celery's monitors

    def announce(self, attempts: list[Attempt]) -> None:
        """Tell monitors of attempts that have begun since the last call."""
        if self._monitors is None or not self._monitors.listening:
            return
        events: list[monitor_events.Event] = []
        for attempt in attempts:
            if not attempt.announced:
                attempt.announced = True
                events += monitor_events.started_events(attempt.claim, attempt.step, attempt.worker)
        self._monitors.publish(events)

    def _completion_events(self, attempt: Attempt) -> str:
        """Return the events that the recording script publishes; empty if no monitor listens."""
        if not attempt.step.ops or self._monitors is None or not self._monitors.listening:
            return ""
        events = monitor_events.started_events(attempt.claim, attempt.step, attempt.worker)
        events += monitor_events.success_events(
            attempt.claim, attempt.rows, attempt.worker, attempt.server_time()
        )
        return monitor_events.encode_events(events)
