"""Write the streamed pieces of all attempts of a session to the server.

One write is under way at a time, so pieces cannot overtake one another: emit.lua drops pieces that were
written before by their number alone. The thread that adds a piece writes it itself if no write is under way.
Pieces that come meanwhile, of whatever attempt, go together in the next write, by a thread of the writer's
own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from gridq.store.scripts import Pieces, Scripts

log = logging.getLogger(__name__)

GATHER_SECONDS_PER_STREAM = 0.001
"""The pause after a write, for each stream in it but one. From about 1,000 pieces a second on more come in a
pause than the last write had, and share the next one. The first and the last pieces of a stream wait for no
pause.
"""

MAX_GATHER_SECONDS = 0.004

RETRY_SECONDS = 0.5
"""The time between two tries while the server is away."""

MAX_BUFFERED_CHARACTERS = 1024 * 1024
"""The length of an attempt's waiting pieces from which it waits too, so that it cannot outrun the server."""

MAX_WRITE_CHARACTERS = 256 * 1024
"""The length of pieces from which a write takes no more, so that none of the streams waits long."""


class PieceStream:
    """The pieces of one attempt that are not yet in its job's stream.

    `on_fenced()` is called once it is known that the attempt no longer counts. `dropped` are the parts of the
    input that have no effect; they stand beside the first piece.
    """

    def __init__(self, lease: str, on_fenced: Callable[[], None]) -> None:
        self.lease = lease
        self.on_fenced = on_fenced
        self.dropped: Sequence[str] = ()
        self.waiting: deque[tuple[str, str]] = deque()
        """Paths and pieces, those that are being written included."""
        self.characters = 0
        self.written = 0
        self.is_queued = False
        self.is_closed = False
        self.error: RedisError | None = None
        """Why the last try failed; None if it did not."""

    def append(self, path: str, pieces: Sequence[str]) -> None:
        self.waiting.extend((path, piece) for piece in pieces)
        self.characters += sum(map(len, pieces))

    def select(self, characters: int) -> Pieces:
        """Return the first pieces, of one path and up to this length, at least one."""
        path = self.waiting[0][0]
        selected: list[str] = []
        for other, piece in self.waiting:
            if other != path or (selected and characters <= 0):
                break
            selected.append(piece)
            characters -= len(piece)
        return Pieces(self.lease, path, self.written, self.dropped, selected)

    def remove(self, written: Pieces) -> None:
        """Forget pieces that are in the job's stream."""
        for piece in written.pieces:
            self.waiting.popleft()
            self.characters -= len(piece)
        self.written += len(written.pieces)

    def close(self) -> None:
        """Forget all pieces and take no more."""
        self.is_closed = True
        self.waiting.clear()
        self.characters = 0


Batch = list[tuple[PieceStream, Pieces]]
"""The pieces of one write, with their streams."""


class PieceWriter:
    """Writes pieces, on the threads that add them and on one of its own. Any thread may call its methods."""

    def __init__(self, seat: str, scripts: Scripts) -> None:
        self._scripts = scripts
        self._queue: deque[PieceStream] = deque()
        self._lock = threading.Lock()  # of everything here and in the streams
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._is_writing = False
        self._is_away = False
        """True if the server did not answer the last write."""
        self._paused_until = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, name=f"pieces {seat}", daemon=True)

    def add(self, stream: PieceStream, path: str, pieces: Sequence[str]) -> None:
        """Write pieces, or have them written soon. Wait while too many of the stream's are not written."""
        with self._lock:
            if self._stopped or stream.is_closed:
                return
            stream.append(path, pieces)
            if not stream.is_queued:
                stream.is_queued = True
                self._queue.append(stream)
            batch = self._begin(is_urgent=not stream.written)
        if batch:
            self._write(batch)
        if stream.characters >= MAX_BUFFERED_CHARACTERS:
            with self._lock:
                self._progress.wait_for(
                    lambda: stream.characters < MAX_BUFFERED_CHARACTERS or stream.is_closed or self._stopped
                )

    def finish(self, stream: PieceStream) -> None:
        """Wait until all pieces are written, or the attempt no longer counts. RedisError: the server could
        not be reached; the pieces are kept.
        """
        while True:
            with self._lock:
                if not stream.waiting:
                    return
                if stream.error is not None:
                    raise stream.error
                if self._stopped:
                    return
                batch = self._begin(is_urgent=True)
                if not batch:
                    self._progress.wait()
            if batch:
                self._write(batch)

    def stop(self) -> None:
        """Stop after the write that is under way, and wait up to five seconds for it."""
        with self._lock:
            self._stopped = True
            self._work.notify_all()
            self._progress.notify_all()
            self._progress.wait_for(lambda: not self._is_writing, 5)
        if self._thread.is_alive():
            self._thread.join(5)

    def _begin(self, *, is_urgent: bool) -> Batch:
        """Return the pieces of a write that this thread must do now; empty if another thread does it."""
        if self._is_writing or self._stopped or not self._queue:
            return []
        if self._is_away or not (is_urgent or time.monotonic() >= self._paused_until):
            self._wake_thread()
            return []
        return self._take()

    def _wake_thread(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._work.notify()

    def _take(self) -> Batch:
        """Return the pieces of the next write, at most one path of each stream."""
        self._is_writing = True
        batch: Batch = []
        room = MAX_WRITE_CHARACTERS
        while self._queue and room > 0:
            stream = self._queue.popleft()
            pieces = stream.select(room)
            room -= sum(map(len, pieces.pieces))
            batch.append((stream, pieces))
        return batch

    def _write(self, batch: Batch) -> None:
        """Write pieces and note what became of them."""
        found: Sequence[bool | RedisError]
        try:
            found = self._scripts.emit_all([pieces for _, pieces in batch])
        except RedisError as exc:
            log.warning("the pieces of %d stages wait for the server: %s", len(batch), exc)
            found = [exc] * len(batch)
        except Exception:  # whatever it is, no attempt may wait for this write in vain
            log.exception("the pieces of %d stages are lost", len(batch))
            found = [False] * len(batch)
        fenced = []
        with self._lock:
            for (stream, pieces), result in zip(batch, found, strict=True):
                stream.error = result if isinstance(result, RedisError) else None
                if result is True:
                    stream.remove(pieces)
                elif result is False:
                    stream.close()
                    fenced.append(stream)
                stream.is_queued = bool(stream.waiting)
                if stream.is_queued:
                    self._queue.append(stream)
            self._is_writing = False
            self._is_away = all(isinstance(result, RedisError) for result in found)
            pause = min(GATHER_SECONDS_PER_STREAM * (len(batch) - 1), MAX_GATHER_SECONDS)
            if any(not stream.written for stream in self._queue):  # the first pieces of one came meanwhile
                pause = 0.0
            self._paused_until = time.monotonic() + (RETRY_SECONDS if self._is_away else pause)
            self._progress.notify_all()
            if self._queue:
                self._wake_thread()
        for stream in fenced:
            stream.on_fenced()

    # -- the thread

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._work.wait_for(lambda: (self._queue and not self._is_writing) or self._stopped)
                while not self._stopped and (pause := self._paused_until - time.monotonic()) > 0:
                    self._work.wait(pause)
                if self._stopped:
                    return
                batch = self._take() if self._queue and not self._is_writing else []
            if batch:
                self._write(batch)
