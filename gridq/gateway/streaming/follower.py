"""The position of one reader in a job's stream, and the bounded buffer between it and the server."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from gridq.errors import GridError
from gridq.protocol.states import JobState

MAX_BUFFER_BYTES = 1024 * 1024
"""A buffer with as many bytes is full, even if it has few pieces."""


class Entry(NamedTuple):
    """One entry of a job's stream: the end of the job, or a piece as JSON text with the path of its stage.

    `id` is the entry's place in the stream, empty for the end of a job that has no stream. `dropped` stands
    beside the first piece: the parts of the stage's input that had no effect, as JSON, empty without any.
    """

    id: str
    path: str
    piece: bytes | None
    end: JobState | None
    dropped: bytes = b""


class Follower:
    """A reader of one job's stream, made by `Relay.follow`. Close it, or use it in a `with` statement.

    `position` is the last entry that was read from the server. If the stream cannot be followed any more,
    `next` raises the error.
    """

    def __init__(
        self,
        job: str,
        key: bytes,
        after: str,
        *,
        max_entries: int,
        close: Callable[[Follower], None],
        wake: Callable[[], None],
        fresh: bool,
    ) -> None:
        self.job = job
        self.key = key
        self.position = after.encode()
        self.is_full = False
        self.has_ended = False
        self.may_have_gap = not fresh
        """True if entries after `position` may have been trimmed; checked with the next entries."""
        self.max_silence = 1.0
        self.last_heard = math.inf if fresh else 0.0
        """When the job was last heard of or checked, in monotonic seconds; infinite: not checked yet."""
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._max_entries = max_entries
        self._fault: GridError | None = None
        self._reader: asyncio.Future[bool] | None = None
        self._close = close
        self._wake = wake

    @property
    def wants_more(self) -> bool:
        """True if there is room for more entries, and more may come."""
        return not (self.is_full or self.has_ended)

    @property
    def has_entries(self) -> bool:
        """True if `next` would return an entry at once."""
        return bool(self._entries)

    def check_if_silent(self, max_silence: float) -> None:
        """Check the job's state from now on if its stream is silent for `max_silence` seconds."""
        self.max_silence = max_silence
        self.last_heard = time.monotonic()

    def feed(self, entries: Sequence[Sequence[Any]], now: float) -> None:
        """Buffer entries from the server, each `(id, [field, value, …])`, all after `position`."""
        self.last_heard = now
        for number, fields in entries:
            if fields[0] == b"end":
                self.has_ended = True
                entry = Entry(number.decode(), "", None, JobState(fields[1].decode()))
            else:
                dropped = fields[5] if len(fields) > 5 else b""
                entry = Entry(number.decode(), fields[1].decode(), fields[3], None, dropped)
                self._size += len(fields[3])
            self._entries.append(entry)
        if entries:
            self.position = entries[-1][0]
            self.is_full = not self.has_ended and (
                len(self._entries) >= self._max_entries or self._size >= MAX_BUFFER_BYTES
            )
            self._wake_reader()

    def finish(self, state: JobState) -> None:
        """Record the end of a job that has no stream."""
        self.has_ended = True
        self._entries.append(Entry("", "", None, state))
        self._wake_reader()

    def fail(self, fault: GridError) -> None:
        """Have `next` raise `fault` once the buffer is empty."""
        self.has_ended = True
        self._fault = fault
        self._wake_reader()

    async def next(self, timeout: float | None = None) -> Entry | None:
        """Return the next entry, None after `timeout` seconds without one or after the end."""
        while not self._entries:
            if self._fault is not None:
                raise self._fault
            if self.has_ended:
                return None
            loop = asyncio.get_running_loop()
            reader = self._reader = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _give_up, reader)
            try:
                if not await reader:
                    return None
            finally:
                self._reader = None
                if timer is not None:
                    timer.cancel()
        entry = self._entries.popleft()
        if entry.piece is not None:
            self._size -= len(entry.piece)
        if (
            self.is_full
            and len(self._entries) <= self._max_entries // 2
            and self._size <= MAX_BUFFER_BYTES // 2
        ):
            self.is_full, self.may_have_gap = False, True
            self._wake()
        return entry

    async def wait_for_end(self, timeout: float | None = None) -> JobState | None:
        """Skip all pieces and return how the job ended, None if it does not within `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            entry = await self.next(None if until is None else max(until - time.monotonic(), 0))
            if entry is None or entry.end is not None:
                return entry.end if entry else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop following. Closing twice is harmless."""
        self.has_ended = True
        self._close(self)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(True)


def _give_up(reader: asyncio.Future[bool]) -> None:
    if not reader.done():
        reader.set_result(False)
