"""One reader for the streams of all followed jobs, on a single connection.

A blocking XREAD over all streams returns what is new in any of them. A follower whose buffer is full is
left out of the next read, so memory is bounded and the server keeps the rest. A new follower interrupts a
blocking read with CLIENT UNBLOCK. While the server is away followers wait and lose nothing, because each
stream is read from its follower's position.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import redis.asyncio
from hiredis import pack_command
from redis.exceptions import RedisError, ResponseError

from gridq.errors import StreamTrimmed
from gridq.gateway.streaming.cancellation import cancel
from gridq.gateway.streaming.follower import Follower
from gridq.gateway.streaming.pipe import Pipe
from gridq.gateway.streaming.resume import BEGINNING, parse_entry_id
from gridq.jobs.record import End
from gridq.jobs.waiting import build_not_found_error, build_poll
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

BLOCK_MS = 5000
"""How long one read blocks. It must be shorter than the socket's timeout."""

MAX_ENTRIES = 100
"""Maximum number of entries of one stream in a reply."""

RETRY_SECONDS = 0.2
"""Seconds between two attempts while the server is away."""

GATHER_SECONDS_PER_FOLLOWER = 10e-6
"""Pause between two reads for each follower. With thousands of followers a read is expensive, so each
should return the entries of several; with few, entries arrive at once.
"""

MAX_GATHER_SECONDS = 0.02

UNBLOCK_RETRY_SECONDS = 0.0005
"""Seconds until a read that could not be interrupted yet is interrupted again."""

CHECK_SECONDS = 1.0
"""Seconds between two checks of silent jobs."""

MAX_CHECKS = 1000
"""Maximum number of jobs in one check."""

ADMITTED_SILENCE_SECONDS = 10.0
"""Silence after which a job that this gateway admitted is checked. Other jobs are checked after one second.
"""


class Relay:
    """Follows the streams of many jobs. `start` it on the event loop that uses it."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, pipe: Pipe, *, buffer: int = 256) -> None:
        self._client = client
        self._pipe = pipe
        self._keys = keys
        self._buffer = buffer
        self._followers: dict[bytes, list[Follower]] = {}
        self._changed = asyncio.Event()
        self._blocked: int | None = None
        self._check_now = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to read."""
        parts = (self._read, self._interrupt_read, self._check_silent_jobs)
        self._tasks = [asyncio.create_task(part(), name=f"relay{part.__name__}") for part in parts]

    async def close(self) -> None:
        """Stop reading. Followers get nothing more."""
        await cancel(*self._tasks)

    def __len__(self) -> int:
        return sum(map(len, self._followers.values()))

    def follow(self, job: str, after: str = BEGINNING, *, fresh: bool = False) -> Follower:
        """Return a follower of a job's stream after the entry `after`. The last entry is the job's end.

        If the job has no stream, the follower returns only its end. `fresh`: the job is about to be
        submitted with a stream, and is not checked before `Follower.check_if_silent`.

        The follower raises JobNotFound, and StreamTrimmed if the next entries no longer exist.
        """
        key = self._keys("stream", job).encode()
        follower = Follower(
            job,
            key,
            after,
            max_entries=self._buffer,
            close=self._unfollow,
            wake=self._changed.set,
            fresh=fresh,
        )
        self._followers.setdefault(key, []).append(follower)
        self._changed.set()
        if not fresh:
            self._check_now.set()
        return follower

    def _unfollow(self, follower: Follower) -> None:
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
                    number = int(await _send_command(connection, "CLIENT", "ID"))
                    while True:
                        await self._read_once(connection, number)
                        if away:
                            log.warning("reading streams again")
                        away = False
                finally:
                    self._blocked = None
                    await connection.disconnect(nowait=True)
                    await self._client.connection_pool.release(connection)
            except (RedisError, OSError) as exc:
                if not away:
                    log.warning("streams wait for the Redis server: %s", exc)
                away = True
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # whatever it is, all followers depend on this task
                log.exception("the stream reader failed; restarting")
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_once(self, connection: Any, number: int) -> None:
        """Read once from all followed streams. `number` is the connection's ID at the server."""
        self._changed.clear()
        streams = self._streams_to_read()
        if not streams:
            await self._changed.wait()
            return
        keys = list(streams)
        positions = [
            group[0].position
            if len(group) == 1
            else min((follower.position for follower in group), key=parse_entry_id)
            for group in streams.values()
        ]
        self._blocked = number
        connection.write_now(_pack_xread(keys, positions))
        reply = await connection.read_response()
        self._blocked = None
        now = time.monotonic()
        for key, entries in reply or ():
            group = streams[key]  # without followers that came since, which have other positions
            for follower in group:
                if follower.wants_more:
                    await self._deliver(follower, entries, now, alone=len(group) == 1)
        pause = min(GATHER_SECONDS_PER_FOLLOWER * len(keys), MAX_GATHER_SECONDS)
        await asyncio.sleep(pause if pause > 2e-3 else 0)  # 0: what was read is sent before the next read

    def _streams_to_read(self) -> dict[bytes, list[Follower]]:
        """Return the streams to read, each with the followers that have room for more."""
        streams = {}
        for key, group in self._followers.items():
            with_room = [follower for follower in group if follower.wants_more]
            if with_room:
                streams[key] = with_room
        return streams

    async def _deliver(self, follower: Follower, entries: list[Any], now: float, *, alone: bool) -> None:
        if not alone:  # the read began at the position of the slowest
            position = parse_entry_id(follower.position)
            entries = [entry for entry in entries if parse_entry_id(entry[0]) > position]
        if follower.may_have_gap and entries:
            try:
                has_gap = not await self._has_no_gap(follower)
            except ResponseError:  # the stream was deleted since the read
                follower.fail(build_not_found_error(follower.job))
                return
            if has_gap:
                follower.fail(_make_trimmed_error(follower.job))
                return
            follower.may_have_gap = False
        follower.feed(entries, now)

    async def _has_no_gap(self, follower: Follower) -> bool:
        """Return True if nothing after the follower's position was trimmed.

        It is called after the read, because what exists now also existed then.
        """
        info = await self._client.xinfo_stream(follower.key)
        if info["entries-added"] == info["length"]:
            return True
        first = info["first-entry"]
        return bool(first and parse_entry_id(first[0]) <= parse_entry_id(follower.position))

    async def _interrupt_read(self) -> None:
        """Interrupt a blocking read when the set of followed streams changes."""
        while True:
            await self._changed.wait()
            if self._blocked is not None:
                with contextlib.suppress(RedisError, OSError):
                    await self._pipe.execute(("CLIENT", "UNBLOCK", self._blocked))
            # UNBLOCK may have come before the read blocked. `_read_once` clears the event as it starts again.
            await asyncio.sleep(0)
            if self._changed.is_set():
                await asyncio.sleep(UNBLOCK_RETRY_SECONDS if self._blocked is not None else 0.001)

    # -- silent jobs

    async def _check_silent_jobs(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._check_now.wait()
            self._check_now.clear()
            now = time.monotonic()
            silent = [
                follower
                for group in self._followers.values()
                for follower in group
                if follower.wants_more and now - follower.last_heard >= follower.max_silence
            ]
            silent.sort(key=lambda follower: follower.last_heard)
            try:
                await self._check_jobs(silent[:MAX_CHECKS])
            except (RedisError, OSError):  # the reader logs it
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # as in `_read`; the cause may be a single job
                log.exception("checking silent jobs failed; retrying")
                await asyncio.sleep(RETRY_SECONDS)

    async def _check_jobs(self, silent: list[Follower]) -> None:
        """Check if these jobs still exist, and if one without a stream has ended."""
        if not silent:
            return
        pipeline = self._client.pipeline(transaction=False)
        for follower in silent:
            for command in build_poll(self._keys, follower.job):
                pipeline.execute_command(*command)
            pipeline.xrevrange(follower.key, count=1)
        replies = await pipeline.execute()
        now = time.monotonic()
        for index, follower in enumerate(silent):
            end, running, queued, last = replies[4 * index : 4 * index + 4]
            follower.last_heard = now
            if not follower.wants_more or (
                last and parse_entry_id(last[0][0]) > parse_entry_id(follower.position)
            ):
                continue
            if end is not None:  # it has no stream, or is followed from after its end
                follower.finish(End.parse(end).state)
            elif not running and not queued:
                follower.fail(build_not_found_error(follower.job))


def _pack_xread(keys: list[bytes], positions: list[bytes]) -> bytes:
    """Encode XREAD, not by redis-py, which takes longer with thousands of keys."""
    words: Any = (b"XREAD", b"COUNT", MAX_ENTRIES, b"BLOCK", BLOCK_MS, b"STREAMS", *keys, *positions)
    packed: bytes = pack_command(words)
    return packed


async def _send_command(connection: Any, *command: str) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()


def _make_trimmed_error(job: str) -> StreamTrimmed:
    return StreamTrimmed(
        "Part of the stream after this position no longer exists",
        {
            "path": job,
            "reason": "the server keeps about 10,000 pieces, and this reader fell further behind",
            "fix": "read the whole answer once the job has ended",
        },
    )
