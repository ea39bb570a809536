"""The hold before a worker is there, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gridq.errors import NoLiveSeat
from gridq.gateway.grid import admission_wait
from gridq.gateway.grid.admission_wait import Holding
from gridq.store.connection import connect_async
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid, one

OPUS, GONE, OTHER = "llm:opus", "llm:gone", "gpu:cuda-8g"


class Asking:
    """Admits a stage of one queue, and counts how often it was asked to."""

    def __init__(self, grid: Grid, queue: str = OPUS) -> None:
        self.grid = grid
        self.queue = queue
        self.attempts = 0

    async def __call__(self) -> str:
        self.attempts += 1
        reply = self.grid.admit(one(queue=self.queue), wait=False)
        if reply[0] == "noseat":
            raise NoLiveSeat("none", {"path": self.queue, "queue": self.queue, "reason": "nobody"})
        return reply[0]


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    return Grid(grid_env.client, grid_env.settings)


@asynccontextmanager
async def held(grid: Grid, seconds: float = 30.0, most: int = admission_wait.MOST) -> AsyncIterator[Holding]:
    client = connect_async(grid.config.broker_url.get_secret_value(), name="tests", timeout=5.0)
    made = Holding(client, grid.keys, seconds, most=most)
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


def test_who_is_served_is_not_held(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        async with held(grid) as holds:
            asking = Asking(grid)
            assert await holds.admit(asking) == "ok"
            assert asking.attempts == 1

    asyncio.run(scenario())


def test_a_job_before_the_first_worker_waits_for_it_and_asks_no_more_than_it_must(grid: Grid) -> None:
    async def scenario() -> None:
        async with held(grid) as holds:
            asking = Asking(grid)
            task = asyncio.create_task(holds.admit(asking))
            await until(lambda: holds.held == 1)
            await asyncio.sleep(3 * admission_wait.CLOSE)
            assert asking.attempts == 1
            grid.seat("m.a", OPUS)
            assert await task == "ok"
            assert asking.attempts == 2
            assert holds.held == 0

    asyncio.run(scenario())


def test_an_unknown_model_gets_its_error_at_once(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        async with held(grid, seconds=3600) as holds:
            with pytest.raises(NoLiveSeat) as caught:
                await holds.admit(Asking(grid, GONE))
            assert caught.value.details["served"] is False

    asyncio.run(scenario())


def test_a_queue_that_was_served_lately_is_waited_for(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        grid.seat("m.b", GONE)
        async with held(grid) as holds:
            await until(lambda: GONE in holds._seen)
            grid.scripts.leave("m.b", "i1", "go")
            task = asyncio.create_task(holds.admit(Asking(grid, GONE)))
            await until(lambda: bool(holds._waiting))
            grid.seat("m.b", GONE, inc="i2")
            assert await task == "ok"

    asyncio.run(scenario())


def test_a_seat_that_takes_nothing_for_a_while_is_waited_for(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OPUS)
        grid.seat("m.b", GONE)
        grid.scripts.leave("m.b", "i1", "drain")
        async with held(grid) as holds:
            task = asyncio.create_task(holds.admit(Asking(grid, GONE)))
            await until(lambda: bool(holds._waiting))
            grid.seat("m.b", GONE)
            assert await task == "ok"

    asyncio.run(scenario())


def test_a_kind_that_nobody_has_is_waited_for_though_others_are_live(grid: Grid) -> None:
    async def scenario() -> None:
        grid.seat("m.a", OTHER)
        async with held(grid) as holds:
            task = asyncio.create_task(holds.admit(Asking(grid)))
            await until(lambda: bool(holds._waiting))
            grid.seat("m.b", OPUS)
            assert await task == "ok"

    asyncio.run(scenario())


def test_who_waits_for_a_kind_is_told_at_once_when_it_comes_without_the_queue(grid: Grid) -> None:
    async def scenario() -> None:
        async with held(grid, seconds=3600) as holds:
            task = asyncio.create_task(holds.admit(Asking(grid, GONE)))
            await until(lambda: bool(holds._waiting))
            grid.seat("m.a", OPUS)
            with pytest.raises(NoLiveSeat) as caught:
                await task
            assert caught.value.details["served"] is False

    asyncio.run(scenario())


def test_the_hold_is_bounded_in_time_and_says_how_long_it_was(grid: Grid) -> None:
    async def scenario() -> None:
        async with held(grid, seconds=0.3) as holds:
            with pytest.raises(NoLiveSeat) as caught:
                await holds.admit(Asking(grid))
            assert caught.value.details["held"] >= 0.29
            assert "served" not in caught.value.details
            assert holds.held == 0
        async with held(grid, seconds=3600) as holds:
            with pytest.raises(NoLiveSeat) as caught:
                await holds.admit(Asking(grid), within=0.1)
            assert caught.value.details["held"] >= 0.09

    asyncio.run(scenario())


def test_the_hold_is_bounded_in_number(grid: Grid) -> None:
    async def scenario() -> None:
        async with held(grid, seconds=3600, most=2) as holds:
            tasks = [asyncio.create_task(holds.admit(Asking(grid))) for _ in range(2)]
            await until(lambda: holds.held == 2)
            with pytest.raises(NoLiveSeat) as caught:
                await holds.admit(Asking(grid))
            assert "held already" in str(caught.value.reason)
            grid.seat("m.a", OPUS)
            assert await asyncio.gather(*tasks) == ["ok", "ok"]

    asyncio.run(scenario())


def test_no_hold_where_it_is_set_to_nothing(grid: Grid) -> None:
    async def scenario() -> None:
        async with held(grid, seconds=0) as holds:
            with pytest.raises(NoLiveSeat):
                await holds.admit(Asking(grid))

    asyncio.run(scenario())


def test_whoever_goes_away_or_is_closed_on_is_not_held_any_more(grid: Grid) -> None:
    async def scenario() -> None:
        async with held(grid, seconds=3600) as holds:
            task = asyncio.create_task(holds.admit(Asking(grid)))
            await until(lambda: bool(holds._waiting))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (holds.held, dict(holds._waiting)) == (0, {})
            task = asyncio.create_task(holds.admit(Asking(grid)))
            await until(lambda: bool(holds._waiting))
        with pytest.raises(NoLiveSeat):
            await task

    asyncio.run(scenario())


def test_where_nobody_can_look_it_is_held_no_longer(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(holds: Holding) -> None:
        raise ConnectionError("the server is away")

    monkeypatch.setattr(Holding, "_look", look)

    async def scenario() -> None:
        async with held(grid, seconds=0.1) as holds, asyncio.timeout(20):
            with pytest.raises(NoLiveSeat):
                await holds.admit(Asking(grid))

    asyncio.run(scenario())


def test_many_held_share_one_look(grid: Grid) -> None:
    async def scenario() -> None:
        async with held(grid) as holds:
            tasks = [asyncio.create_task(holds.admit(Asking(grid))) for _ in range(300)]
            await until(lambda: len(holds._waiting[(OPUS,)]) == 300)
            asked = int(grid.client.info("commandstats")["cmdstat_hkeys"]["calls"])
            await asyncio.sleep(5 * admission_wait.CLOSE)
            looks = int(grid.client.info("commandstats")["cmdstat_hkeys"]["calls"]) - asked
            assert 0 < looks < 50, "each for itself they would have been a thousand"
            grid.seat("m.a", OPUS)
            assert set(await asyncio.gather(*tasks)) == {"ok"}

    asyncio.run(scenario())
