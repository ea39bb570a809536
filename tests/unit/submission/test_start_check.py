"""The snapshot of queues and seats, the estimated position, and the details of refusals."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import RedisError

from gridq.app import app
from gridq.errors import (
    AgentJobsExceeded,
    AgentMoneyExceeded,
    DeadlineUnreachable,
    GridError,
    GridFull,
    NoLiveSeat,
    QueueFull,
)
from gridq.messaging import wake_ups
from gridq.protocol.models import Advertisement, ServiceTime
from gridq.seats import registry
from gridq.store.connection import connect
from gridq.submission.queue_snapshot import StageRequest, read_snapshot
from gridq.submission.refusal_details import DEFAULT_RETRY_SECONDS, explain_refusal
from gridq.submission.start_check import SNAPSHOT_TTL_SECONDS, LiveForecast
from gridq.submission.start_forecast import StartForecast
from gridq.views.audit import find_breaches
from tests.conftest import GridEnv
from tests.unit.store.plans import ANY, Grid, one

AGE = 600.0


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[Grid]:
    made = Grid(grid_env.client, grid_env.settings)
    wake_ups.write_templates(app, made.client, made.keys)
    yield made
    assert not find_breaches(made.client, made.keys)


def advertise(grid: Grid, seat: str = "m.a", took: float = 2.0, n: int = 50, **more: Any) -> None:
    """Advertise how long stages of ANY take on a seat."""
    service = {ANY: ServiceTime(n=n, mean=took, p50=took, p90=took)}
    fields = {"machine": "m", "worker": f"{seat}@m", "incarnation": "i1", "kind": "bench", "concurrency": 1}
    ad = Advertisement(seat=seat, **{**fields, "queues": [ANY], "service": service, **more})
    registry.advertise(grid.client, grid.keys, ad, 60)


def test_the_snapshot_has_seats_and_pending_stages(grid: Grid) -> None:
    grid.seat(concurrency=2)
    advertise(grid)
    grid.job(one(), "run")
    grid.take()
    grid.job(one(cost=5_000), "b1", prio=1, agent="bob")
    grid.job(one(), "i1", agent="ann")
    snapshot = read_snapshot(grid.client, grid.keys, AGE)
    (seat,) = snapshot.seats
    assert (seat.seat, seat.concurrency, seat.service[ANY].mean) == ("m.a", 2, 2.0)
    assert [queue for queue, _ in seat.running] == [ANY]
    assert 0 <= seat.running[0][1] < 60
    lines = {(line.agent, line.prio, line.cost): (line.count, line.aged) for line in snapshot.pending}
    assert lines == {("ann", 0, 0): (1, 0), ("bob", 1, 10_000): (1, 0)}
    assert snapshot.virtual_times["bench", "ann"] == 1.0, "it was served once"


def test_aged_batch_stages_are_counted_separately(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "b1", prio=1, agent="ann")
    grid.job(one(), "b2", prio=1, agent="ann")
    grid.client.zadd(grid.keys("waiting", ANY, "1/0|", "ann"), {"b1:0": grid.now() - 601_000})
    (line,) = read_snapshot(grid.client, grid.keys, AGE).pending
    assert (line.count, line.aged) == (2, 1)


def test_an_empty_grid_has_an_empty_snapshot(grid: Grid) -> None:
    snapshot = read_snapshot(grid.client, grid.keys, AGE)
    assert (snapshot.seats, snapshot.pending) == ((), ())


def test_concurrent_readers_share_one_failed_read(grid: Grid) -> None:
    """Otherwise each refused admission would wait for a silent server in turn."""
    many = 6
    together = threading.Barrier(many)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with connect(url, name="test", timeout=1.0, retry=False) as client:
            live = LiveForecast(client, grid.keys, AGE)

            def ask(_: int) -> str:
                together.wait()
                with pytest.raises(RedisError) as caught:
                    live.forecast(StageRequest(ANY, "ann", 0, 0))
                return type(caught.value).__name__

            with ThreadPoolExecutor(many) as threads:
                assert set(threads.map(ask, range(many))) == {"TimeoutError"}
            silent.setblocking(False)
            tried = 0
            with suppress(BlockingIOError):
                while True:
                    silent.accept()[0].close()
                    tried += 1
            assert tried == 1
    live._client = grid.client  # the server is back: the next look is a new one
    assert live.forecast(StageRequest(ANY, "ann", 0, 0)).queue == ANY


@pytest.mark.parametrize("dice", range(8))
def test_position_matches_the_order_of_the_scripts(grid: Grid, dice: int) -> None:
    """Stages differ in history, priority and cost."""
    chance = random.Random(dice)
    grid.seat(concurrency=1)
    agents = ["ann", "bob", "eve", "kim"]
    for _ in range(chance.randrange(12)):  # a history, so that virtual times differ
        grid.job(one(cost=chance.choice([0, 0, 9_000])), agent=chance.choice(agents))
        grid.done(grid.take())
    for _ in range(40):
        given = one(cost=chance.choice([0, 0, 9_000]))
        grid.job(given, agent=chance.choice(agents[:3]), prio=chance.choice([0, 1, 1]))
    ask = StageRequest(ANY, chance.choice(agents), chance.choice([0, 1]))
    forecast = LiveForecast(grid.client, grid.keys, AGE).forecast(ask)
    grid.job(one(), "probe", agent=ask.agent, prio=ask.prio)
    place = 1
    while (claim := grid.take()).job != "probe":
        grid.done(claim)
        place += 1
    assert abs(forecast.position - place) <= (2 if ask.prio else 1)


def test_a_snapshot_is_cached_for_a_moment(grid: Grid) -> None:
    live = LiveForecast(grid.client, grid.keys, AGE)
    assert live.forecast(StageRequest(ANY)).concurrency == 0
    grid.seat()
    assert live.forecast(StageRequest(ANY)).concurrency == 0
    live._cache.ttl = 0.0
    assert SNAPSHOT_TTL_SECONDS == 0.5
    assert live.forecast(StageRequest(ANY)).concurrency > 0


def make_forecast(position: int = 7, p50: float | None = 30.0, **more: Any) -> StartForecast:
    low, high = (None, None) if p50 is None else (p50 * 0.8, p50 * 1.2)
    return StartForecast(ANY, position, 4, p50, low, high, "the 4 slots of bench:any", 0.5, **more)


def test_a_full_queue_explains_position_and_start_time() -> None:
    error = QueueFull("full", {"path": ANY, "queue": ANY, "pending": 200, "limit": 200, "needed": 3})
    assert explain_refusal(error, make_forecast()) == {
        "path": ANY,
        "queue": ANY,
        "pending": 200,
        "limit": 200,
        "needed": 3,
        "capability": ANY,
        "bottleneck": "max_pending of bench:any (200)",
        "position": 7,
        "starts_in": {"low": 24.0, "p50": 30.0, "high": 36.0},
        "retry_after": 6.0,
        "fix": "submit it again in 6 s, or raise max_pending of bench:any in the quotas file",
    }
    model = explain_refusal(error, make_forecast(faster_queue="llm:meta%2Fllama-3"))
    assert model["fix"] == "use the model 'meta/llama-3', which would run it now"
    there = explain_refusal(error, make_forecast(faster_queue="bench:wide"))
    assert there["fix"] == "use bench:wide, which would run it now"


def test_a_job_larger_than_the_queue_is_not_told_to_wait() -> None:
    error = QueueFull("full", {"queue": ANY, "pending": 0, "limit": 2, "needed": 3})
    found = explain_refusal(error, make_forecast())
    assert found["retry_after"] is None
    assert found["fix"] == "raise max_pending of bench:any in the quotas file"


def test_without_measurements_the_start_time_is_null() -> None:
    error = QueueFull("full", {"queue": ANY, "pending": 2, "limit": 2, "needed": 1})
    found = explain_refusal(error, make_forecast(p50=None))
    assert (found["position"], found["starts_in"]) == (7, None)
    assert found["retry_after"] > 0
    assert explain_refusal(error)["position"] is None


def test_an_unreachable_deadline_suggests_a_reachable_one() -> None:
    error = DeadlineUnreachable("late", {"option": "deadline", "queue": ANY, "seconds": 10.0})
    found = explain_refusal(error, make_forecast())
    assert found["bottleneck"] == "the 4 slots of bench:any"
    assert found["retry_after"] == 14.0
    assert found["fix"] == "raise the deadline to 36 s"
    sooner = make_forecast(as_interactive=make_forecast(1, 2.0))
    assert explain_refusal(error, sooner)["fix"] == "submit it as interactive, or raise the deadline to 36 s"


def test_a_quota_refusal_has_the_reset_time() -> None:
    details = {"path": "agents.ann.monthly_jobs", "retry_at": "2999-01-01T00:00:00+00:00", "fix": "raise it"}
    found = explain_refusal(AgentJobsExceeded("no", details))
    assert found["bottleneck"] == "agents.ann.monthly_jobs"
    assert found["retry_after"] > 1e9
    assert found["fix"] == "raise it"
    alone = {**details, "retry_at": None, "limit": 1, "used": 0, "needed": 2}
    assert explain_refusal(AgentJobsExceeded("no", alone))["retry_after"] is None


def test_details_of_the_error_take_precedence() -> None:
    assert explain_refusal(GridFull("full", {"retry_after": 5.0, "fix": "wait"}))["retry_after"] == 5.0
    found = explain_refusal(
        GridError("So", {"bottleneck": "this", "position": 3, "fix": "wait"}), make_forecast()
    )
    assert (found["bottleneck"], found["position"], found["fix"]) == ("this", 3, "wait")


def test_without_a_seat_there_is_no_position() -> None:
    error = NoLiveSeat(f"No live seat serves {ANY}", {"path": ANY, "queue": ANY, "fix": "start one"})
    unserved = StartForecast(ANY, None, 0, None, None, None, f"no live seat serves {ANY}")
    for forecast in (None, unserved):
        found = explain_refusal(error, forecast)
        assert (found["position"], found["starts_in"]) == (None, None)
        assert found["bottleneck"] == "no live seat serves bench:any"
        assert found["fix"] == "start one"


def test_a_paused_seat_has_its_return_time() -> None:
    error = NoLiveSeat(f"No live seat serves {ANY}", {"path": ANY, "queue": ANY})
    found = explain_refusal(error, StartForecast(ANY, 1, 2, 30.0, 30.0, 30.0, f"every seat of {ANY} pauses"))
    assert (found["position"], found["retry_after"]) == (1, 30.0)
    assert found["bottleneck"] == "every seat of bench:any pauses"


def test_reservations_of_running_jobs_shorten_the_retry_time() -> None:
    about = {"retry_at": "2999-01-01T00:00:00+00:00", "limit": 10, "used": 4, "reserved": 5, "needed": 3}
    assert explain_refusal(AgentMoneyExceeded("no", about))["retry_after"] == DEFAULT_RETRY_SECONDS
    assert explain_refusal(AgentMoneyExceeded("no", {**about, "used": 8}))["retry_after"] > 1e9


@pytest.mark.parametrize("retry_after", [float("nan"), float("inf"), True, "3", None])
def test_an_invalid_retry_after_is_replaced(retry_after: Any) -> None:
    assert (
        explain_refusal(GridError("so", {"retry_after": retry_after}))["retry_after"] == DEFAULT_RETRY_SECONDS
    )
