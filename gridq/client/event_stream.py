"""A job's events over HTTP: read as they come, and again from where they broke off, at whichever gateway.

The events are server-sent ones. Each has an id, by which the next connection goes on behind it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from gridq.client import responses
from gridq.client.gateway_calls import Call
from gridq.client.waiting import PAUSE, pause_of, place_of
from gridq.errors import GridError, KeyLimitReached
from gridq.jobs.server_outage import AWAY
from gridq.jobs.waiting import Piece

SILENCE = 25.0
"""Seconds without a byte after which a connection is taken for dead: a gateway sends a comment each 10 s."""

LEAST = 1.0
"""Seconds that are waited for a piece at least."""

OVER = 10.0
"""Seconds for which the job's end is waited for once its stream has ended."""


class Following:
    """How far one reader of a job's pieces has come. `ended`: it has them all.

    `timeout`: seconds that may pass without a piece; None: any number.
    """

    def __init__(self, job: str, timeout: float | None) -> None:
        self.ended = False
        self._path = f"{place_of(job)}/events"
        self._timeout = timeout
        self._at = ""
        self._silence = SILENCE
        self._events = Events()
        self._progress = self._heard = time.monotonic()

    def call(self) -> Call:
        """The call that goes on behind the last piece. It may be silent no longer than a piece may take."""
        self._events = Events()
        headers = {"accept": "text/event-stream"} | ({"last-event-id": self._at} if self._at else {})
        self._silence = min(SILENCE, max(self._left(), LEAST))
        return Call("GET", self._path, headers=headers, wait=self._silence, way="wait")

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """The pieces that are whole with `chunk`. Raises the error that the gateway tells of."""
        self._heard = time.monotonic()
        for event in self._events.feed(chunk):
            if event.kind == "piece":
                piece = responses.piece(event.data)
                self._at = event.id
                yield piece
                self._progress = time.monotonic()  # who reads may take his time
            elif event.kind == "end":
                self.ended = True
            elif event.kind == "error":
                raise responses.fault(event.data)

    def leaves(self) -> bool:
        """Whether to read no more of this connection: all is told, or it might be silent for too long."""
        left = self._left()
        return self.ended or left <= 0 or (self._silence > LEAST and left < self._silence / 2)

    def late(self) -> bool:
        """Whether too much time passed without a piece."""
        return not self.ended and self._left() <= 0

    def pause(self, fault: GridError | None) -> float:
        """Seconds until the next connection; `fault` is what ended the last one. It is raised where it was
        borne for long enough.
        """
        if isinstance(fault, KeyLimitReached):
            return pause_of(fault)
        if fault is not None and self._timeout is None and time.monotonic() - self._heard > AWAY:
            raise fault
        return 0.0 if fault is None and self.leaves() else PAUSE

    def _left(self) -> float:
        return math.inf if self._timeout is None else self._progress + self._timeout - time.monotonic()


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: its id, its kind, its data as JSON text."""

    id: str
    kind: str
    data: bytes


class Events:
    """Cuts what comes over a connection into events."""

    def __init__(self) -> None:
        self._rest = b""
        self._id, self._kind = "", ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that are whole with `chunk`. Comments are passed over."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"id":
                self._id = value.decode("utf-8", "replace")
            elif name == b"event":
                self._kind = value.decode("utf-8", "replace")
            elif line in (b"", b"\r") and self._data:
                yield Event(self._id, self._kind or "message", b"\n".join(self._data))
                self._kind, self._data = "", []
