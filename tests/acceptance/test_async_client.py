"""The asyncio client: many at once on one loop, streams, cancel, errors."""

from __future__ import annotations

import asyncio

import pytest

from gridq import errors
from gridq.client import AsyncClient
from gridq.protocol.states import JobState
from tests.acceptance.grids import WholeGrid

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


def test_a_hundred_at_once(whole_grid: WholeGrid) -> None:
    async def scene() -> list[int]:
        client = AsyncClient(config=whole_grid.config)
        try:
            return await asyncio.gather(*(client.run(ECHO, number, timeout=20) for number in range(100)))
        finally:
            await client.close()

    assert asyncio.run(scene()) == list(range(100))


def test_stream_cancel_and_status(whole_grid: WholeGrid) -> None:
    async def scene() -> None:
        client = AsyncClient(config=whole_grid.config)
        try:
            tokens = {"root": {"op": "Stage", "id": "bench_tokens", "config": {"n": 4, "ms": 20}}}
            job = await client.submit(tokens, stream=True)
            assert "".join([piece.value async for piece in client.stream(job)]) == await client.result(job)
            assert await client.status(job) is JobState.DONE
            assert [row.stage for row in await client.rows(job)] == ["bench_tokens"]
            sleep = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 60_000}}}
            job = await client.submit(sleep)
            with pytest.raises(errors.WaitTimeout):
                await client.result(job, timeout=0.2)
            assert await client.cancel(job)
            with pytest.raises(errors.JobCancelled):
                await client.result(job)
        finally:
            await client.close()

    asyncio.run(scene())


def test_errors_are_raised_where_they_are_awaited(whole_grid: WholeGrid) -> None:
    async def scene() -> None:
        client = AsyncClient(config=whole_grid.config)
        try:
            with pytest.raises(errors.UnknownStage):
                await client.submit({"root": {"op": "Stage", "id": "nothing"}})
            with pytest.raises(errors.StageError):
                await client.run({"root": {"op": "Stage", "id": "bench_fail"}}, {}, timeout=20)
            with pytest.raises(errors.JobNotFound):
                await client.result("no-such-job", timeout=1)
        finally:
            await client.close()

    asyncio.run(scene())
