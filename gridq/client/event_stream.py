"""Read a job's events over HTTP, and resume after a broken connection at any gateway.

The events are server-sent events. Each one has an id, after which the next connection resumes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from gridq.client import responses
from gridq.client.gateway_calls import Call
from gridq.client.long_polling import RETRY_PAUSE_SECONDS, build_job_path, get_retry_delay
from gridq.errors import GridError, KeyLimitReached
from gridq.jobs.server_outage import MAX_OUTAGE_SECONDS
from gridq.jobs.waiting import Piece
from gridq.protocol.sse import SseParser

MAX_SILENCE_SECONDS = 25.0
"""The time without a byte after which a connection counts as dead. A gateway sends a comment every 10 s."""

MIN_SILENCE_SECONDS = 1.0
"""The shortest silence that ends a connection, however little time is left for the next piece."""

END_WAIT_SECONDS = 10.0
"""The time to wait for a job's end once its stream has ended."""


class EventStream:
    """The state of one reader of a job's pieces, across all its connections.

    `ended` is set after the last piece. `timeout` is the number of seconds that may pass without a piece;
    None means no limit.
    """

    def __init__(self, job: str, timeout: float | None) -> None:
        self.ended = False
        self._path = f"{build_job_path(job)}/events"
        self._timeout = timeout
        self._last_id = ""
        self._max_silence = MAX_SILENCE_SECONDS
        self._parser = SseParser()
        self._last_piece_at = self._last_byte_at = time.monotonic()

    def build_call(self) -> Call:
        """Return the call that opens the next connection, after the last piece.

        It may stay silent no longer than the next piece may take.
        """
        self._parser = SseParser()
        headers = {"accept": "text/event-stream"} | (
            {"last-event-id": self._last_id} if self._last_id else {}
        )
        self._max_silence = min(MAX_SILENCE_SECONDS, max(self._get_time_left(), MIN_SILENCE_SECONDS))
        params = {"pieces": "true"}
        return Call("GET", self._path, params, headers=headers, wait=self._max_silence, kind="wait")

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """Yield the pieces that `chunk` completes. Raises the error that the gateway sends as an event."""
        self._last_byte_at = time.monotonic()
        for event in self._parser.feed(chunk):
            if event.kind == "piece":
                piece = responses.read_piece(event.data.encode())
                self._last_id = event.id
                yield piece
                self._last_piece_at = time.monotonic()  # after the yield: a slow reader is not late
            elif event.kind == "end":
                self.ended = True
            elif event.kind == "error":
                raise responses.read_stream_error(event.data.encode())

    def should_disconnect(self) -> bool:
        """Return whether to leave this connection: the stream ended, or it may stay silent for too long."""
        left = self._get_time_left()
        too_silent = self._max_silence > MIN_SILENCE_SECONDS and left < self._max_silence / 2
        return self.ended or left <= 0 or too_silent

    def has_timed_out(self) -> bool:
        """Return whether too much time has passed without a piece."""
        return not self.ended and self._get_time_left() <= 0

    def get_pause(self, error: GridError | None) -> float:
        """Return the seconds to pause before the next connection; `error` is what ended the last one.

        Raises `error` if there is no timeout and no gateway has been heard of for MAX_OUTAGE_SECONDS.
        """
        if isinstance(error, KeyLimitReached):
            return get_retry_delay(error)
        silence = time.monotonic() - self._last_byte_at
        if error is not None and self._timeout is None and silence > MAX_OUTAGE_SECONDS:
            raise error
        return 0.0 if error is None and self.should_disconnect() else RETRY_PAUSE_SECONDS

    def _get_time_left(self) -> float:
        if self._timeout is None:
            return math.inf
        return self._last_piece_at + self._timeout - time.monotonic()
