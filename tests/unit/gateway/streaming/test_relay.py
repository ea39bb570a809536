"""One reader for all streams, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gridq.errors import JobNotFound, StreamTrimmed
from gridq.gateway.streaming.follower import Entry, Follower
from gridq.gateway.streaming.pipe import Pipe
from gridq.gateway.streaming.relay import MAX_ENTRIES, Relay
from gridq.gateway.streaming.resume import parse_entry_id
from gridq.protocol.states import JobState
from gridq.store.connection import connect_async
from gridq.store.keys import Keys
from tests.conftest import GridEnv

LONG = 20.0
"""Seconds after which a test that waits for nothing fails."""


class Scene:
    """A relay, and the streams that it follows."""

    def __init__(self, env: GridEnv, buffer: int) -> None:
        self.keys = Keys(env.prefix)
        self.client = connect_async(env.url, name="relay")
        self.pipe = Pipe(connect_async(env.url, name="pipe", retry=False))
        self.relay = Relay(self.client, self.keys, self.pipe, buffer=buffer)

    async def write(self, job: str, *pieces: str) -> None:
        together = self.client.pipeline(transaction=False)
        for piece in pieces:
            together.xadd(self.keys("stream", job), {"path": "root", "piece": piece})
        together.hset(self.keys("job", job), "agent", "a")  # it runs, as a look finds that comes between two
        for key in ("stream", "job"):
            together.expire(self.keys(key, job), 600)
        await together.execute()

    async def end(self, job: str, state: str = "done", *, stream: bool = True) -> None:
        if stream:
            await self.client.xadd(self.keys("stream", job), {"end": state})
            await self.client.expire(self.keys("stream", job), 600)
        await self.client.rpush(self.keys("result", job), f"{state}\n1")
        await self.client.expire(self.keys("result", job), 600)


@asynccontextmanager
async def scene(env: GridEnv, buffer: int = 256) -> AsyncIterator[Scene]:
    made = Scene(env, buffer)
    made.relay.start()
    try:
        async with asyncio.timeout(LONG):
            yield made
    finally:
        await made.relay.close()
        await made.pipe.close()
        await made.client.aclose()


def run_scene(env: GridEnv, act: Callable[[Scene], Awaitable[None]], **given: Any) -> None:
    async def run() -> None:
        async with scene(env, **given) as made:
            await act(made)

    asyncio.run(run())


async def all_of(follower: Follower) -> list[Entry]:
    entries = []
    while (entry := await follower.next()) is not None:
        entries.append(entry)
    return entries


def pieces(entries: list[Entry]) -> list[str]:
    return [entry.piece.decode() for entry in entries if entry.piece is not None]


def test_a_follower_gets_past_and_new_pieces_then_the_end(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        await made.write("j1", "1", "2")
        with made.relay.follow("j1") as follower:
            reading = asyncio.ensure_future(all_of(follower))
            await asyncio.sleep(0.05)
            await made.write("j1", "3")
            await made.end("j1", "failed")
            entries = await reading
        assert pieces(entries) == ["1", "2", "3"]
        assert entries[-1].end is JobState.FAILED
        assert [parse_entry_id(entry.id) for entry in entries] == sorted(
            parse_entry_id(entry.id) for entry in entries
        )
        assert entries[0].path == "root"
        assert len(made.relay) == 0

    run_scene(grid_env, act)


def test_a_new_follower_interrupts_a_blocking_read(
    grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridq.gateway.streaming.relay.BLOCK_MS", 9000)

    async def act(made: Scene) -> None:
        await made.write("j2", "1")
        with made.relay.follow("silent", fresh=True):
            await asyncio.sleep(0.2)
            async with asyncio.timeout(5):
                with made.relay.follow("j2", fresh=True) as follower:
                    entry = await follower.next()
            assert entry is not None
            assert entry.piece == b"1"

    run_scene(grid_env, act)


def test_hundreds_of_jobs_are_followed_at_once(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        jobs = [f"j{number}" for number in range(300)]
        followers = {job: made.relay.follow(job, fresh=True) for job in jobs}
        reading = {job: asyncio.ensure_future(all_of(each)) for job, each in followers.items()}
        for turn in range(5):
            for job in jobs:
                await made.write(job, f'"{job} {turn}"')
        for job in jobs:
            await made.end(job)
        for job in jobs:
            assert pieces(await reading[job]) == [f'"{job} {turn}"' for turn in range(5)]
            followers[job].close()
        assert len(made.relay) == 0

    run_scene(grid_env, act)


def test_a_slow_reader_has_a_bounded_buffer_and_loses_nothing(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        with made.relay.follow("j1", fresh=True) as slow, made.relay.follow("j2", fresh=True) as quick:
            for start in range(0, 5000, 500):
                await made.write("j1", *map(str, range(start, start + 500)))
            await made.write("j2", "1")
            await made.end("j1")
            await made.end("j2")
            assert pieces(await all_of(quick)) == ["1"]
            assert len(slow._entries) < 64 + MAX_ENTRIES
            assert pieces(await all_of(slow)) == [str(number) for number in range(5000)]

    run_scene(grid_env, act, buffer=64)


def test_large_pieces_fill_a_buffer(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        long = '"' + "x" * 100_000 + '"'
        with made.relay.follow("j1", fresh=True) as slow:
            for _ in range(30):
                await made.write("j1", *[long] * 10)
                await asyncio.sleep(0.005)
            assert slow._size < 2_000_000 + MAX_ENTRIES * 100_000
            await made.end("j1")
            assert len(pieces(await all_of(slow))) == 300

    run_scene(grid_env, act)


def test_two_readers_of_one_job_start_at_different_entries(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        await made.write("j1", *"123456789")
        with made.relay.follow("j1") as first:
            entries = [await first.next() for _ in range(5)]
            assert entries[3] is not None
            with made.relay.follow("j1", entries[3].id) as second:
                await made.end("j1")
                assert pieces(await all_of(second)) == list("56789")
            assert pieces(await all_of(first)) == list("6789")

    run_scene(grid_env, act)


def test_reading_from_before_trimmed_entries_fails(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        await made.write("j1", *"123456789")
        with made.relay.follow("j1") as whole:
            ids = [entry.id for entry in [await whole.next() for _ in range(9)] if entry]
        await made.client.xtrim(made.keys("stream", "j1"), maxlen=4, approximate=False)
        for place in ("0", ids[0], ids[4]):
            with made.relay.follow("j1", place) as follower, pytest.raises(StreamTrimmed):
                await follower.next()
        with made.relay.follow("j1", ids[5]) as follower:
            entry = await follower.next()
            assert entry is not None
            assert entry.piece == b"7"

    run_scene(grid_env, act)


def test_a_reader_that_falls_behind_the_stream_limit_fails(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        with made.relay.follow("j1", fresh=True) as slow:
            for start in range(0, 1000, 100):
                await made.write("j1", *map(str, range(start, start + 100)))
            first = await slow.next()
            await made.client.xtrim(made.keys("stream", "j1"), maxlen=10, approximate=False)
            entries = [first]
            with pytest.raises(StreamTrimmed):  # noqa: PT012
                while True:
                    entries.append(await slow.next())
            numbers = [int(entry.piece) for entry in entries if entry is not None and entry.piece]
            assert numbers == list(range(len(numbers)))

    run_scene(grid_env, act, buffer=16)


def test_a_stream_that_is_deleted_while_it_is_read_disturbs_no_other(
    grid_env: GridEnv, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(made: Scene) -> None:
        with made.relay.follow("gone", "5-0", fresh=True) as follower:
            follower.may_have_gap = True
            read = [[b"6-0", [b"path", b"root", b"piece", b"7"]]]  # and then somebody deletes the stream
            await made.relay._deliver(follower, read, 0.0, alone=True)
            with pytest.raises(JobNotFound):
                await follower.next()

    run_scene(grid_env, act)
    assert not caplog.records


def test_a_job_without_a_stream_reports_its_end(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        await made.client.hset(made.keys("job", "j1"), "agent", "ann")
        await made.client.expire(made.keys("job", "j1"), 600)
        with made.relay.follow("j1") as follower:
            assert await follower.wait_for_end(0.1) is None
            await made.end("j1", "cancelled", stream=False)
            assert await follower.wait_for_end() is JobState.CANCELLED

    run_scene(grid_env, act)


def test_following_an_unknown_job_fails(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        with made.relay.follow("gone") as follower, pytest.raises(JobNotFound):
            await follower.next()

    run_scene(grid_env, act)


def test_a_job_about_to_be_submitted_is_not_checked_before(
    grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridq.gateway.streaming.relay.CHECK_SECONDS", 0.02)

    async def act(made: Scene) -> None:
        with made.relay.follow("j1", fresh=True) as follower:
            assert await follower.next(0.3) is None
            follower.check_if_silent(0.0)
            with pytest.raises(JobNotFound):
                await follower.next()

    run_scene(grid_env, act)


def test_a_lost_connection_loses_no_entry(grid_env: GridEnv) -> None:
    async def act(made: Scene) -> None:
        with made.relay.follow("j1", fresh=True) as follower:
            reading = asyncio.ensure_future(all_of(follower))
            for number in range(20):
                await made.write("j1", str(number))
                if number % 5 == 2:
                    for client in await made.client.client_list():
                        if client["name"] == "relay" and client["cmd"] == "xread":
                            await made.client.client_kill_filter(_id=client["id"])
                await asyncio.sleep(0.01)
            await made.end("j1")
            assert pieces(await reading) == [str(number) for number in range(20)]

    run_scene(grid_env, act)
