"""Faults of a seat's runner: the stage has one recorded end, and every run is accounted for."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import exceptions as errors_of_redis

from gridq import errors
from gridq.config.settings import Settings
from gridq.errors import GridError, SeatUnavailable, StageError
from gridq.execution.attempt import Attempt
from gridq.execution.session import Session
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Json, StageCall
from gridq.protocol.states import JobState
from gridq.store.connection import connect
from gridq.submission.admission import Admission
from tests.builders import stage
from tests.fakes.bench_profile import BenchProfile
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


class OwnError(StageError):
    """A custom error with another constructor than those of gridq."""

    def __init__(self) -> None:
        super().__init__("of its own kind")


class Unreadable(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise SystemExit("no text")


class Odd(BenchRunner):
    """Raises `raises` or runs `act`, if they are set, and counts the runs."""

    def __init__(self) -> None:
        super().__init__()
        self.raises: BaseException | None = None
        self.act: Any = None
        self.runs = 0

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        self.runs += 1
        if self.raises is not None:
            raise self.raises
        return self.act(context) if self.act else super().__call__(stage, value, context)


@pytest.fixture
def odd(server: EmbeddedServer) -> Iterator[tuple[LocalGrid, Odd]]:
    config = Settings(
        broker_url=server.url, prefix="odd:", profiles=(), retry_backoff=0.05, sweep_ms=50, lease_ms=600,
        renew_ms=100,
    )  # fmt: skip
    client = connect(server.url)
    runner = Odd()
    seats: dict[str, Sequence[str]] = {
        "m.router": [queue_names.PURE],
        "m.a": ["bench:any"],
        "m.b": ["bench:any"],
    }
    with LocalGrid(client, config, seats, runner=runner) as grid:
        grid.client._admission = Admission(grid.scripts, config, {"bench": BenchProfile()})
        yield grid, runner
    for key in client.scan_iter("odd:*", count=1000):
        client.unlink(key)
    client.close()


@pytest.mark.parametrize(
    "raised",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        MemoryError(),
        RecursionError(),
        ValueError("x"),
        Unreadable(),
    ],
)
def test_an_unexpected_exception_is_the_seats_fault(
    odd: tuple[LocalGrid, Odd], raised: BaseException
) -> None:
    grid, runner = odd
    runner.raises = raised
    with pytest.raises(errors.AttemptsExhausted, match=type(raised).__name__):
        grid.client.run(ECHO, 1, timeout=20)
    assert runner.runs == grid.config.max_attempts


def test_a_stage_that_waited_for_a_cancelled_job_fails(odd: tuple[LocalGrid, Odd]) -> None:
    grid, runner = odd
    runner.raises = errors.JobCancelled("The job was cancelled")
    with pytest.raises(StageError) as caught:
        grid.client.run(ECHO, 1, timeout=20)
    assert (type(caught.value), caught.value.reason) == (StageError, "The job was cancelled")
    assert runner.runs == 1


@pytest.mark.parametrize(
    "details",
    [{"reason": b"bytes"}, {"more": object()}, {"more": float("nan")}, {(1, 2): "x"}, {"reason": "\ud800"}],
)
def test_an_error_with_details_that_are_not_json_is_recorded(
    odd: tuple[LocalGrid, Odd], details: dict[str, Any]
) -> None:
    grid, runner = odd
    runner.raises = StageError("it said so", details)
    with pytest.raises(StageError, match="it said so") as caught:
        grid.client.run(ECHO, 1, timeout=20)
    assert caught.value.path == "root"
    assert runner.runs == 1


def test_a_custom_error_class_is_recorded(odd: tuple[LocalGrid, Odd]) -> None:
    grid, runner = odd
    runner.raises = OwnError()
    with pytest.raises(GridError, match="of its own kind"):
        grid.client.run(ECHO, 1, timeout=20)
    assert runner.runs == 1


@pytest.mark.parametrize("retry_after", ["soon", -5, None, "nan", [1]])
def test_an_invalid_retry_after_is_ignored(odd: tuple[LocalGrid, Odd], retry_after: Json) -> None:
    grid, runner = odd
    runner.raises = SeatUnavailable("not now", {"retry_after": retry_after})
    with pytest.raises(errors.AttemptsExhausted):
        grid.client.run(ECHO, 1, timeout=20)
    assert runner.runs == grid.config.max_attempts


@pytest.mark.parametrize("retry_after", ["inf", 1e300])
def test_a_huge_retry_after_is_bounded(odd: tuple[LocalGrid, Odd], retry_after: Json) -> None:
    grid, runner = odd
    runner.raises = SeatUnavailable("not now", {"retry_after": retry_after})
    job = grid.client.submit(ECHO, 1)
    wait_for(lambda: grid.scripts.client.zcard(grid.scripts.keys("delays")) == 2)
    assert grid.client.cancel(job)
    assert runner.runs == 2


def test_an_attempt_that_cannot_be_recorded_is_lost(
    odd: tuple[LocalGrid, Odd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot must not get the same claim again: the second run would not be accounted for."""
    grid, runner = odd
    failing = itertools.count()
    really = grid.scripts.fail

    def fail(*args: Any, **more: Any) -> str:
        if next(failing) < 2:
            raise ValueError("it cannot be recorded")
        return really(*args, **more)

    monkeypatch.setattr(grid.scripts, "fail", fail)
    runner.raises = StageError("it failed")
    with pytest.raises(StageError) as caught:
        grid.client.run(ECHO, 1, timeout=20)
    assert runner.runs == 3
    assert caught.value.details["attempt"] == 3
    assert grid.scripts.client.hget(grid.scripts.keys("attempts_lost"), "count") == b"2"


def test_a_slow_cancel_callback_delays_no_renewal(odd: tuple[LocalGrid, Odd]) -> None:
    grid, runner = odd
    entered: Counter[str] = Counter()

    def slow(context: StageContext) -> Json:
        def on_cancel() -> None:
            entered["act"] += 1
            time.sleep(2)

        context.on_cancel(on_cancel)
        context.cancelled.wait(10)
        context.check()
        return None

    runner.act = slow
    job = grid.client.submit(ECHO, 1)
    wait_for(lambda: runner.runs)
    runner.act = lambda context: context.cancelled.wait(1.5)
    other = [grid.client.submit(ECHO, n) for n in range(2)]
    assert grid.client.cancel(job)
    for each in other:
        assert grid.client.result(each, timeout=20) is False
        assert [row.attempt for row in grid.client.rows(each)] == [1]
    assert entered["act"] == 1


def test_a_broken_connection_loses_neither_pieces_nor_result(
    odd: tuple[LocalGrid, Odd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks while pieces are written."""
    grid, runner = odd
    broken = itertools.count()
    really = grid.scripts.emit_all

    def emit_all(*args: Any) -> Any:
        if next(broken) < 3:
            raise errors_of_redis.ConnectionError("gone")
        return really(*args)

    monkeypatch.setattr(grid.scripts, "emit_all", emit_all)
    graph = {"root": {"op": "Stage", "id": "bench_tokens", "config": {"n": 5, "ms": 60}}}
    job = grid.client.submit(graph, stream=True)
    pieces = [piece.value for piece in grid.client.stream(job, timeout=20)]
    assert "".join(pieces) == grid.client.result(job)
    assert runner.runs == 1


def test_a_forgotten_session_registers_again(odd: tuple[LocalGrid, Odd]) -> None:
    """This holds too if a slot, not the renewal, notices it first."""
    grid, _ = odd
    was_live: list[bool] = []  # whether the seat was live already

    def live() -> bool:
        return grid.scripts.client.zscore(grid.scripts.keys("seats"), "m.c") is not None

    session = Session(
        grid.scripts, grid.config, seat="m.c", host="here", concurrency=1, queues=["bench:other"],
        runner=BenchRunner(), on_gone=lambda: was_live.append(live()),
    )  # fmt: skip
    session.register()
    grid.scripts.client.zrem(grid.scripts.keys("seats"), "m.c")
    session.work()
    assert was_live == [False]
    assert live()
    session.stop(0)


def test_a_draining_seat_still_drains_after_it_registers_again(odd: tuple[LocalGrid, Odd]) -> None:
    grid, _ = odd
    session = Session(
        grid.scripts, grid.config, seat="m.c", host="here", concurrency=1, queues=["bench:other"],
        runner=BenchRunner(),
    )  # fmt: skip
    session.register()
    session.drain()
    grid.scripts.client.zrem(grid.scripts.keys("seats"), "m.c")
    session.renew()
    assert grid.scripts.client.hget(grid.scripts.keys("seat", "m.c"), "draining") == b"1"
    assert not grid.scripts.client.exists(grid.scripts.keys("idle", "bench:other"))
    session.stop(0)


@pytest.mark.parametrize("stages_before", [0, 1], ids=["after a wake-up", "after another stage"])
def test_a_stage_claimed_just_before_its_seat_stops_is_run_once(
    odd: tuple[LocalGrid, Odd], monkeypatch: pytest.MonkeyPatch, stages_before: int
) -> None:
    """The slot has not begun to run it: its seat seems idle to whoever stops it."""
    grid, _ = odd
    made, claimed = itertools.count(), threading.Event()

    class Slow(Attempt):
        def __init__(self, *args: Any, **more: Any) -> None:
            if next(made) == stages_before:
                claimed.set()
                time.sleep(0.3)
            super().__init__(*args, **more)

    monkeypatch.setattr("gridq.execution.session.Attempt", Slow)
    session = Session(
        grid.scripts, grid.config, seat="m.c", host="here", concurrency=1, queues=["bench:other"],
        runner=BenchRunner(),
    )  # fmt: skip
    session.register()
    graph = {"root": stage("bench_echo", slug="other")}
    jobs = [grid.client.submit(graph, number) for number in range(stages_before + 1)]
    slot = threading.Thread(target=session.work)
    slot.start()
    assert claimed.wait(20)
    session.stop()
    assert {grid.client.status(job) for job in jobs} == {JobState.DONE}, "its process may end now"
    slot.join(20)
    for job in jobs:
        grid.client.result(job, timeout=20)
        assert [(row.attempt, row.losses) for row in grid.client.rows(job)] == [(1, 0)]
