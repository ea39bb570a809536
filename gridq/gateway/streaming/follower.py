"""One reader's place in a job's stream, and the bounded buffer between it and the server."""

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

BYTES = 1024 * 1024
"""A buffer of so many bytes is full, however few pieces they are."""


class Entry(NamedTuple):
    """One entry of a job's stream: a piece as JSON text with the path of the stage that made it, or the end.

    `id` names its place in the stream; it is empty for the end of a job that has no stream.
    """

    id: str
    path: str
    piece: bytes | None
    end: JobState | None


def order(entry_id: str | bytes) -> tuple[int, int]:
    """A stream entry's id as what it is compared by.

    >>> order("1700000000000-3") > order("0")
    True
    """
    ms, _, number = (entry_id.decode() if isinstance(entry_id, bytes) else entry_id).partition("-")
    return int(ms), int(number or 0)


class Follower:
    """Reads one job's stream; made by `Relay.follow`, and closed by whoever asked for it (`with`).

    `at` is the last entry that was taken from the server. Its error is raised where the job's stream cannot
    be followed (any more).
    """

    def __init__(self, job: str, key: bytes, after: str, *, most: int, close: Callable[[Follower], None],
                 wake: Callable[[], None], fresh: bool) -> None:  # fmt: skip
        self.job = job
        self.key = key
        self.at = after.encode()
        self.full = False
        self.ended = False
        self.doubtful = not fresh
        """Entries that it has not seen may have been trimmed away: to be checked with the next ones."""
        self.patience = 1.0
        self.heard = math.inf if fresh else 0.0
        """When it was last heard or looked at, by the monotonic clock; infinite: not to be looked at yet."""
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._most = most
        self._fault: GridError | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._close = close
        self._wake = wake

    @property
    def open(self) -> bool:
        """Whether there is room for more, and more to come."""
        return not (self.full or self.ended)

    @property
    def ready(self) -> bool:
        """Whether `next` would give an entry at once."""
        return bool(self._entries)

    def watch(self, patience: float) -> None:
        """From now on look at the job where its stream was silent for `patience` seconds."""
        self.patience = patience
        self.heard = time.monotonic()

    def take(self, entries: Sequence[Sequence[Any]], now: float) -> None:
        """Keep what the server gave, `(id, [field, value, …])` each, as far as it is after `at`."""
        self.heard = now
        for number, fields in entries:
            if fields[0] == b"end":
                self.ended = True
                entry = Entry(number.decode(), "", None, JobState(fields[1].decode()))
            else:
                entry = Entry(number.decode(), fields[1].decode(), fields[3], None)
                self._size += len(fields[3])
            self._entries.append(entry)
        if entries:
            self.at = entries[-1][0]
            self.full = not self.ended and (len(self._entries) >= self._most or self._size >= BYTES)
            self._rouse()

    def finish(self, state: JobState) -> None:
        """The job has ended, and has no stream that says so."""
        self.ended = True
        self._entries.append(Entry("", "", None, state))
        self._rouse()

    def fail(self, fault: GridError) -> None:
        """It cannot be followed: `fault` is raised once what was read is handed out."""
        self.ended = True
        self._fault = fault
        self._rouse()

    async def next(self, timeout: float | None = None) -> Entry | None:
        """The next entry; None where `timeout` seconds pass without one, or after the end."""
        while not self._entries:
            if self._fault is not None:
                raise self._fault
            if self.ended:
                return None
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _give_up, waiter)
            try:
                if not await waiter:
                    return None
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        entry = self._entries.popleft()
        if entry.piece is not None:
            self._size -= len(entry.piece)
        if self.full and len(self._entries) <= self._most // 2 and self._size <= BYTES // 2:
            self.full, self.doubtful = False, True
            self._wake()
        return entry

    async def end(self, timeout: float | None = None) -> JobState | None:
        """How the job ended, its pieces passed over; None where `timeout` seconds pass before it does."""
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
        """Follow no more; harmless where it is closed."""
        self.ended = True
        self._close(self)

    def _rouse(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
