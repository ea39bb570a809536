"""One reader for all streams: a single connection that waits for every job that somebody follows.

A blocking XREAD over all their keys gives what is new, whichever it is. A follower whose buffer is full is
left out of the next one, so memory is bounded and the server keeps the rest; a new follower interrupts the
one that blocks by CLIENT UNBLOCK. While the server is away followers wait: nothing is lost, for a stream is
read from where its follower stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from gridq.errors import StreamTrimmed
from gridq.gateway.streaming.cancellation import cancel
from gridq.gateway.streaming.follower import Follower, order
from gridq.gateway.streaming.pipe import Pipe
from gridq.jobs.record import End
from gridq.jobs.waiting import build_not_found_error, build_poll
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

BLOCK_MS = 5000
"""How long one read waits: less than the socket's time-out."""

COUNT = 100
"""The most entries of one stream in one reply."""

PAUSE = 0.2
"""Seconds between two tries where the server is away."""

GATHER = 20e-6
"""Seconds a follower that are waited between two reads: with thousands of them each read is dear, so it
brings the news of several; with few it comes at once.
"""

LONGEST_GATHER = 0.02

AGAIN = 0.0005
"""Seconds until a read that could not be interrupted yet is interrupted again."""

LOOK = 1.0
"""Seconds between two rounds of looks at the followers that heard nothing."""

AT_ONCE = 1000
"""Followers looked at in one round."""

CALM = 10.0
"""Seconds after which a job that was admitted with a stream is looked at, as a stranger's is after one."""


class Relay:
    """Follows the streams of many jobs. `start` it on the loop that uses it."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, pipe: Pipe, *, buffer: int = 256) -> None:
        self._client = client
        self._pipe = pipe
        self._keys = keys
        self._buffer = buffer
        self._followers: dict[bytes, list[Follower]] = {}
        self._changed = asyncio.Event()
        self._blocked: int | None = None
        self._doubt = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to read."""
        parts = (self._read, self._wake, self._look_round)
        self._tasks = [asyncio.create_task(part(), name=f"relay{part.__name__}") for part in parts]

    async def close(self) -> None:
        """End all reading; followers hear nothing more."""
        await cancel(*self._tasks)

    def __len__(self) -> int:
        return sum(map(len, self._followers.values()))

    def follow(self, job: str, after: str = "0", *, fresh: bool = False) -> Follower:
        """Follow a job's stream behind the entry `after`, with its end as the last entry.

        A job without a stream of its own tells its end alone. `fresh`: it is about to be submitted with a
        stream, so nobody looks for it before `Follower.watch`. The follower raises JobNotFound, and
        StreamTrimmed where what comes next is there no more.
        """
        key = self._keys("stream", job).encode()
        follower = Follower(
            job, key, after, most=self._buffer, close=self._drop, wake=self._changed.set, fresh=fresh
        )
        self._followers.setdefault(key, []).append(follower)
        self._changed.set()
        if not fresh:
            self._doubt.set()
        return follower

    def _drop(self, follower: Follower) -> None:
        group = self._followers.get(follower.key, [])
        if follower in group:
            group.remove(follower)
            if not group:
                del self._followers[follower.key]

    # -- the reader

    async def _read(self) -> None:
        away = False
        while True:
            try:
                connection = await self._client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
                try:
                    number = int(await _ask(connection, "CLIENT", "ID"))
                    while True:
                        await self._turn(connection, number)
                        if away:
                            log.warning("the streams are read again")
                        away = False
                finally:
                    self._blocked = None
                    await connection.disconnect(nowait=True)
                    await self._client.connection_pool.release(connection)
            except (RedisError, OSError) as exc:
                if not away:
                    log.warning("the streams wait for the server: %s", exc)
                away = True
                await asyncio.sleep(PAUSE)
            except Exception:  # whatever it is: all that wait for streams wait for this one task
                log.exception("the reader of streams begins anew")
                await asyncio.sleep(PAUSE)

    async def _turn(self, connection: Any, number: int) -> None:
        """One read of all that is followed now. `number` is the connection's own at the server."""
        self._changed.clear()
        wanted = self._wanted()
        if not wanted:
            await self._changed.wait()
            return
        keys = list(wanted)
        places = [
            group[0].at if len(group) == 1 else min((follower.at for follower in group), key=order)
            for group in wanted.values()
        ]
        self._blocked = number
        await connection.send_packed_command(_xread(keys, places))
        reply = await connection.read_response()
        self._blocked = None
        now = time.monotonic()
        for key, entries in reply or ():
            group = wanted[key]  # who came since then has another place
            for follower in group:
                if follower.open:
                    await self._hand(follower, entries, now, alone=len(group) == 1)
        pause = min(GATHER * len(keys), LONGEST_GATHER)
        if pause > 2e-3:
            await asyncio.sleep(pause)

    def _wanted(self) -> dict[bytes, list[Follower]]:
        """The streams to read, each with those who have room for more of it."""
        wanted = {}
        for key, group in self._followers.items():
            open_ones = [follower for follower in group if follower.open]
            if open_ones:
                wanted[key] = open_ones
        return wanted

    async def _hand(self, follower: Follower, entries: list[Any], now: float, *, alone: bool) -> None:
        if not alone:  # read from where the last of them stands
            at = order(follower.at)
            entries = [entry for entry in entries if order(entry[0]) > at]
        if follower.doubtful and entries:
            if not await self._whole(follower):
                follower.fail(_trimmed(follower.job))
                return
            follower.doubtful = False
        follower.take(entries, now)

    async def _whole(self, follower: Follower) -> bool:
        """Whether nothing behind the follower's place has been trimmed away.

        Asked after the read: what is there then was there before, too.
        """
        about = await self._client.xinfo_stream(follower.key)
        if about["entries-added"] == about["length"]:
            return True
        first = about["first-entry"]
        return bool(first and order(first[0]) <= order(follower.at))

    async def _wake(self) -> None:
        """Interrupt the read that blocks where what is followed has changed."""
        while True:
            await self._changed.wait()
            if self._blocked is not None:
                with contextlib.suppress(RedisError, OSError):
                    await self._pipe.ask(("CLIENT", "UNBLOCK", self._blocked))
            # It may have come before the read did. `_turn` takes the mark away as it begins the next.
            await asyncio.sleep(0)
            if self._changed.is_set():
                await asyncio.sleep(AGAIN if self._blocked is not None else 0.001)

    # -- jobs that say nothing

    async def _look_round(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._doubt.wait()
            self._doubt.clear()
            now = time.monotonic()
            silent = [
                follower
                for group in self._followers.values()
                for follower in group
                if follower.open and now - follower.heard >= follower.patience
            ]
            silent.sort(key=lambda follower: follower.heard)
            try:
                await self._look_at(silent[:AT_ONCE])
            except (RedisError, OSError):  # the reader says so
                await asyncio.sleep(PAUSE)
            except Exception:  # as in `_read`: what it is may be one job's alone
                log.exception("the jobs that say nothing are looked at again")
                await asyncio.sleep(PAUSE)

    async def _look_at(self, silent: list[Follower]) -> None:
        """Whether these jobs are there, and whether one without a stream has ended."""
        if not silent:
            return
        together = self._client.pipeline(transaction=False)
        for follower in silent:
            for command in build_poll(self._keys, follower.job):
                together.execute_command(*command)
            together.xrevrange(follower.key, count=1)
        replies = await together.execute()
        now = time.monotonic()
        for place, follower in enumerate(silent):
            end, running, queued, last = replies[4 * place : 4 * place + 4]
            follower.heard = now
            if not follower.open or (last and order(last[0][0]) > order(follower.at)):
                continue
            if end is not None:  # it has no stream, or was asked for behind its end
                follower.finish(End.read(end).state)
            elif not running and not queued:
                follower.fail(build_not_found_error(follower.job))


def _xread(keys: list[bytes], places: list[bytes]) -> list[bytes]:
    """The command in the server's own form: with thousands of keys redis-py takes longer to write it."""
    words = [b"XREAD", b"COUNT", str(COUNT).encode(), b"BLOCK", str(BLOCK_MS).encode(), b"STREAMS"]
    words += keys
    words += places
    return [b"*%d\r\n" % len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])]


async def _ask(connection: Any, *command: str) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()


def _trimmed(job: str) -> StreamTrimmed:
    return StreamTrimmed(
        "Part of the stream behind this place is gone",
        {
            "path": job,
            "reason": "the reader fell more than some 10,000 pieces behind",
            "fix": "take the whole answer when the job has ended",
        },
    )
