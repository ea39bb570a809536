"""A submission waits for a seat that starts again, and for no other, on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gridq.client import Client
from gridq.errors import NoLiveSeat
from gridq.jobs.record import JobOptions
from gridq.protocol import queue_names
from gridq.seats import served_queues
from gridq.submission.seat_wait import limit_wait
from tests.conftest import GridEnv
from tests.unit.seats.live_seats import echo_graph, open_client
from tests.unit.store.plans import ANY, Grid

PURE_GRAPH = {"root": {"op": "Stage", "id": "text_template", "config": {"template": "x"}}}


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with open_client(grid_env) as started:
        yield started


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    return Grid(grid_env.client, grid_env.settings)


@pytest.mark.parametrize(
    ("queue", "graph"), [(ANY, echo_graph()), (queue_names.PURE, PURE_GRAPH)], ids=["worker", "router"]
)
def test_a_job_waits_while_the_only_process_starts_again(
    client: Client, grid: Grid, queue: str, graph: object
) -> None:
    grid.seat("m.a", queue)
    grid.scripts.leave("m.a", "i1", "go")
    back = threading.Timer(0.6, grid.seat, ("m.a", queue), {"inc": "i2"})
    back.start()
    started = time.monotonic()
    assert client.status(client.submit(graph, 1)) == "running"
    assert time.monotonic() - started >= 0.5
    back.join()


def test_a_queue_that_nobody_ever_served_is_refused_at_once(client: Client, grid: Grid) -> None:
    started = time.monotonic()
    with pytest.raises(NoLiveSeat) as caught:
        client.submit(echo_graph(), 1)
    assert time.monotonic() - started < 5
    assert "waited_seconds" not in caught.value.details


def test_a_queue_whose_last_seat_left_long_ago_is_refused_at_once(
    client: Client, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid.seat("m.a")
    grid.scripts.leave("m.a", "i1", "go")
    monkeypatch.setattr(served_queues, "RECENT_SECONDS", -1.0)
    with pytest.raises(NoLiveSeat) as caught:
        client.submit(echo_graph(), 1)
    assert "waited_seconds" not in caught.value.details


def test_the_wait_ends_in_time(client: Client, grid: Grid) -> None:
    grid.seat("m.a")
    grid.scripts.leave("m.a", "i1", "go")
    with pytest.raises(NoLiveSeat) as caught:
        client.submit(echo_graph(), 1, queue_timeout=0.3)
    assert 0.3 <= caught.value.details["waited_seconds"] < 5  # type: ignore[operator]


def test_a_job_waits_no_longer_than_its_own_limits() -> None:
    assert limit_wait(10, JobOptions()) == 10
    assert limit_wait(10, JobOptions(deadline=3, queue_timeout=2)) == 2


def test_a_seat_that_dies_or_pauses_is_remembered_too(client: Client, grid: Grid) -> None:
    grid.seat("m.a", "bench:one")
    grid.seat("m.b", "bench:two")
    grid.age("seats", "m.a")
    grid.sweep()
    grid.scripts.leave("m.b", "i1", "drain")
    found = served_queues.read_served_queues(grid.client, grid.keys)
    assert (found.served, found.paused) == (frozenset(), {"bench:two"})
    assert found.left == {"bench:one", "bench:two"}
    grid.seat("m.a", "bench:one", inc="i2")
    assert served_queues.read_served_queues(grid.client, grid.keys).served == {"bench:one"}
