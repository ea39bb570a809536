"""The hold before a worker is there, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gridq.errors import NoLiveSeat
from gridq.gateway.grid import admission_wait
from gridq.gateway.grid.admission_wait import AdmissionWait
from gridq.seats import served_queues
from gridq.store.connection import connect_async
from gridq.store.replies import Accepted, NoSeat
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid, one

OPUS, GONE, OTHER = "llm:opus", "llm:gone", "gpu:cuda-8g"


class Attempt:
    """Admits a stage of one queue, and counts how often it was called."""

    def __init__(self, grid: Grid, queue: str = OPUS) -> None:
        self.grid = grid
        self.queue = queue
        self.attempts = 0

    async def __call__(self) -> str:
        self.attempts += 1
        reply = self.grid.admit(one(queue=self.queue), wait=False)
        if isinstance(reply, NoSeat):
            error = NoLiveSeat("none", {"path": self.queue, "queue": self.queue, "reason": "nobody"})
            error.awaited = (self.queue,)
            raise error
        assert reply == Accepted()
        return "ok"


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    return Grid(grid_env.client, grid_env.settings)


@asynccontextmanager
async def running(
    grid: Grid, seconds: float = 30.0, max_jobs: int = admission_wait.MAX_WAITING_JOBS
) -> AsyncIterator[AdmissionWait]:
    client = connect_async(grid.config.broker_url.get_secret_value(), name="tests", timeout=5.0)
    made = AdmissionWait(client, grid.keys, seconds, max_jobs=max_jobs)
    made.start()
    try:
        yield made
    finally:
        await made.close()
        await client.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_served_queue_admits_at_once(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        async with running(grid) as waits:
            attempt = Attempt(grid)
            assert await waits.admit(attempt) == "ok"
            assert attempt.attempts == 1

    asyncio.run(scenario())


def test_a_job_waits_for_the_first_worker_and_retries_once(grid: Grid) -> None:
    async def scenario() -> None:
        async with running(grid) as waits:
            attempt = Attempt(grid)
            task = asyncio.create_task(waits.admit(attempt))
            await until(lambda: waits.waiting_jobs == 1)
            await asyncio.sleep(3 * served_queues.POLL_SECONDS)
            assert attempt.attempts == 1
            grid.seat("m.a", OPUS)
            assert await task == "ok"
            assert attempt.attempts == 2
            assert waits.waiting_jobs == 0

    asyncio.run(scenario())


def test_an_unknown_model_gets_its_error_at_once(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        async with running(grid, seconds=3600) as waits:
            with pytest.raises(NoLiveSeat) as caught:
                await waits.admit(Attempt(grid, GONE))
            assert caught.value.details["served"] is False

    asyncio.run(scenario())


async def check_wait(grid: Grid, waits: AdmissionWait) -> None:
    """Check that a job for the queue that nobody serves now waits for a seat, and is then admitted."""
    task = asyncio.create_task(waits.admit(Attempt(grid, GONE)))
    await until(lambda: bool(waits._waiters))
    grid.seat("m.b", GONE, inc="i2")
    assert await task == "ok"


def test_a_job_waits_for_a_recently_served_queue(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        grid.seat("m.b", GONE)
        async with running(grid) as waits:
            await until(lambda: GONE in waits._queues.served)
            grid.scripts.leave("m.b", "i1", "go")
            await check_wait(grid, waits)

    asyncio.run(scenario())


def test_a_gateway_that_restarts_remembers_what_was_served(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        grid.seat("m.b", GONE)
        async with running(grid) as waits:
            await until(lambda: GONE in waits._queues.served)
        grid.scripts.leave("m.b", "i1", "go")
        async with running(grid) as waits:
            await check_wait(grid, waits)
        grid.scripts.leave("m.b", "i2", "go")
        assert grid.client.ttl(grid.keys("served_queues")) > 29 * 86_400
        # long after the start a job for it is refused at once, but the model was never unknown
        monkeypatch.setattr(admission_wait, "START_SECONDS", 0.0)
        monkeypatch.setattr(served_queues, "RECENT_SECONDS", 0.0)
        async with running(grid, seconds=3600) as waits:
            with pytest.raises(NoLiveSeat) as caught:
                await waits.admit(Attempt(grid, GONE))
            assert "served" not in caught.value.details

    asyncio.run(scenario())


def test_a_queue_that_was_served_while_no_gateway_ran_is_not_unknown(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        grid.seat("m.b", GONE)
        grid.scripts.leave("m.b", "i1", "go")
        async with running(grid) as waits:
            assert await waits.may_exist(GONE)
            assert not await waits.may_exist("llm:never")
            await check_wait(grid, waits)

    asyncio.run(scenario())


def test_no_queue_is_unknown_before_the_gateway_has_read_the_grid(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: AdmissionWait) -> None:
        raise ConnectionError("the server is away")

    grid.seat("m.a", OPUS)
    monkeypatch.setattr(AdmissionWait, "_poll", fail)

    async def scenario() -> None:
        async with running(grid, seconds=0.1) as waits:
            with pytest.raises(NoLiveSeat) as caught:
                await waits.admit(Attempt(grid, GONE))
            assert "served" not in caught.value.details
            assert await waits.may_exist(GONE)

    asyncio.run(scenario())


def test_a_job_waits_for_a_drained_seat(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        grid.seat("m.b", GONE)
        grid.scripts.leave("m.b", "i1", "drain")
        async with running(grid) as waits:
            task = asyncio.create_task(waits.admit(Attempt(grid, GONE)))
            await until(lambda: bool(waits._waiters))
            grid.seat("m.b", GONE)
            assert await task == "ok"

    asyncio.run(scenario())


def test_a_job_waits_for_a_kind_without_live_seats(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OTHER)
        async with running(grid) as waits:
            task = asyncio.create_task(waits.admit(Attempt(grid)))
            await until(lambda: bool(waits._waiters))
            grid.seat("m.b", OPUS)
            assert await task == "ok"

    asyncio.run(scenario())


def test_a_waiting_job_is_refused_once_its_kind_is_live_without_its_queue(grid: Grid) -> None:
    async def scenario() -> None:
        async with running(grid, seconds=3600) as waits:
            task = asyncio.create_task(waits.admit(Attempt(grid, GONE)))
            await until(lambda: bool(waits._waiters))
            grid.seat("m.a", OPUS)
            with pytest.raises(NoLiveSeat) as caught:
                await task
            assert caught.value.details["served"] is False

    asyncio.run(scenario())


def test_the_wait_ends_in_time_and_reports_how_long_it_was(grid: Grid) -> None:
    async def scenario() -> None:
        async with running(grid, seconds=0.3) as waits:
            with pytest.raises(NoLiveSeat) as caught:
                await waits.admit(Attempt(grid))
            assert caught.value.details["waited_seconds"] >= 0.29
            assert "served" not in caught.value.details
            assert waits.waiting_jobs == 0
        async with running(grid, seconds=3600) as waits:
            with pytest.raises(NoLiveSeat) as caught:
                await waits.admit(Attempt(grid), within=0.1)
            assert caught.value.details["waited_seconds"] >= 0.09

    asyncio.run(scenario())


def test_the_number_of_waiting_jobs_is_bounded(grid: Grid) -> None:
    async def scenario() -> None:
        async with running(grid, seconds=3600, max_jobs=2) as waits:
            tasks = [asyncio.create_task(waits.admit(Attempt(grid))) for _ in range(2)]
            await until(lambda: waits.waiting_jobs == 2)
            with pytest.raises(NoLiveSeat) as caught:
                await waits.admit(Attempt(grid))
            assert "2 jobs" in str(caught.value.reason)
            grid.seat("m.a", OPUS)
            assert await asyncio.gather(*tasks) == ["ok", "ok"]

    asyncio.run(scenario())


def test_zero_seconds_turn_the_wait_off(grid: Grid) -> None:
    async def scenario() -> None:
        async with running(grid, seconds=0) as waits:
            with pytest.raises(NoLiveSeat):
                await waits.admit(Attempt(grid))

    asyncio.run(scenario())


def test_cancelling_or_closing_ends_the_wait(grid: Grid) -> None:
    async def scenario() -> None:
        async with running(grid, seconds=3600) as waits:
            task = asyncio.create_task(waits.admit(Attempt(grid)))
            await until(lambda: bool(waits._waiters))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (waits.waiting_jobs, dict(waits._waiters)) == (0, {})
            task = asyncio.create_task(waits.admit(Attempt(grid)))
            await until(lambda: bool(waits._waiters))
        with pytest.raises(NoLiveSeat):
            await task

    asyncio.run(scenario())


def test_the_wait_ends_in_time_though_the_server_is_away(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: AdmissionWait) -> None:
        raise ConnectionError("the server is away")

    monkeypatch.setattr(AdmissionWait, "_poll", fail)

    async def scenario() -> None:
        async with running(grid, seconds=0.1) as waits, asyncio.timeout(20):
            with pytest.raises(NoLiveSeat):
                await waits.admit(Attempt(grid))

    asyncio.run(scenario())


def test_waiting_jobs_share_one_poll(grid: Grid) -> None:
    async def scenario() -> None:
        async with running(grid) as waits:
            tasks = [asyncio.create_task(waits.admit(Attempt(grid))) for _ in range(300)]
            await until(lambda: len(waits._waiters[(OPUS,)]) == 300)
            before = int(grid.client.info("commandstats")["cmdstat_hkeys"]["calls"])
            await asyncio.sleep(5 * served_queues.POLL_SECONDS)
            reads = int(grid.client.info("commandstats")["cmdstat_hkeys"]["calls"]) - before
            assert 0 < reads < 50, "each for itself they would have been a thousand"
            grid.seat("m.a", OPUS)
            assert set(await asyncio.gather(*tasks)) == {"ok"}

    asyncio.run(scenario())
