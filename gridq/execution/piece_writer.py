"""Write the streamed pieces of all attempts of a session to the server.

One thread writes, so pieces cannot overtake one another: emit.lua drops pieces that were written before by
their number alone. A piece is written at once if nothing was written for GATHER_SECONDS. Pieces that come
meanwhile, of whatever attempt, go together in one round trip.
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

GATHER_SECONDS = 0.005
"""The time from the end of one write to the next."""

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
        return Pieces(self.lease, path, selected, self.written, self.dropped)

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


class PieceWriter:
    """The thread that writes; it starts with the first piece. Any thread may call its methods."""

    def __init__(self, seat: str, scripts: Scripts) -> None:
        self._scripts = scripts
        self._queue: deque[PieceStream] = deque()
        self._lock = threading.Lock()  # of everything here and in the streams
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, name=f"pieces {seat}", daemon=True)

    def add(self, stream: PieceStream, path: str, pieces: Sequence[str]) -> None:
        """Have pieces written soon, in one write. Wait while too many of the stream's are not written."""
        with self._lock:
            if self._stopped or stream.is_closed:
                return
            if self._thread.ident is None:
                self._thread.start()
            stream.append(path, pieces)
            if not stream.is_queued:
                stream.is_queued = True
                self._queue.append(stream)
                self._work.notify()
            self._progress.wait_for(
                lambda: stream.characters < MAX_BUFFERED_CHARACTERS or stream.is_closed or self._stopped
            )

    def finish(self, stream: PieceStream) -> None:
        """Wait until all pieces are written, or the attempt no longer counts. RedisError: the server could
        not be reached; the pieces are kept.
        """
        with self._lock:
            self._progress.wait_for(lambda: not stream.waiting or stream.error or self._stopped)
            if stream.waiting and stream.error is not None:
                raise stream.error

    def stop(self) -> None:
        """Stop after the write that is under way, and wait up to five seconds for it."""
        with self._lock:
            self._stopped = True
            self._work.notify_all()
            self._progress.notify_all()
        if self._thread.is_alive():
            self._thread.join(5)

    # -- the thread

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._work.wait_for(lambda: self._queue or self._stopped)
                if self._stopped:
                    return
                batch = self._take()
            if self._write(batch):
                time.sleep(GATHER_SECONDS)
            else:
                with self._lock:
                    self._work.wait_for(lambda: self._stopped, RETRY_SECONDS)

    def _take(self) -> list[tuple[PieceStream, Pieces]]:
        """Return the pieces of the next write, at most one path of each stream."""
        batch: list[tuple[PieceStream, Pieces]] = []
        room = MAX_WRITE_CHARACTERS
        while self._queue and room > 0:
            stream = self._queue.popleft()
            pieces = stream.select(room)
            room -= sum(map(len, pieces.pieces))
            batch.append((stream, pieces))
        return batch

    def _write(self, batch: Sequence[tuple[PieceStream, Pieces]]) -> bool:
        """Write pieces and note what became of them. Return whether the server answered."""
        found: Sequence[bool | RedisError]
        try:
            found = self._scripts.emit_all([pieces for _, pieces in batch])
        except RedisError as exc:
            log.warning("the pieces of %d stages wait for the server: %s", len(batch), exc)
            found = [exc] * len(batch)
        except Exception:  # whatever it is, no attempt may wait for this thread in vain
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
            self._queue.extend(stream for stream, _ in batch if stream.is_queued)
            self._progress.notify_all()
        for stream in fenced:
            stream.on_fenced()
        return not all(isinstance(result, RedisError) for result in found)
