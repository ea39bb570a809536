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
from gridq.protocol.models import Advertisement, Json
from gridq.seats import registry, served_queues
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
    assert (found.served, found.paused) == (frozenset(), {"bench:two", "seat:m.b"})
    assert found.left == {"bench:one", "bench:two", "seat:m.a"}
    grid.seat("m.a", "bench:one", inc="i2")
    assert served_queues.read_served_queues(grid.client, grid.keys).served == {"bench:one", "seat:m.a"}


def start(grid: Grid, seat: str, *, inc: str = "i1", lent_to: tuple[str, ...] = ()) -> None:
    """Make a seat live, then advertise it, as a worker does."""
    grid.seat(seat, inc=inc, lent_to=lent_to)
    time.sleep(0.3)
    ad = Advertisement(
        seat=seat, machine="m", worker=f"w@{seat}", incarnation=inc, kind="bench", queues=[ANY],
        concurrency=1, started_at=1.0, lends_to=list(lent_to),
    )  # fmt: skip
    registry.advertise(grid.client, grid.keys, ad, 600.0)


def end(grid: Grid, seat: str) -> None:
    registry.withdraw(grid.client, grid.keys, seat)
    grid.scripts.leave(seat, "i1", "go")


@pytest.mark.parametrize("needs", ["its pin", "a seat lent to it", "a seat that it does not avoid"])
def test_a_job_waits_while_the_only_seat_that_may_take_it_starts_again(
    client: Client, grid: Grid, needs: str
) -> None:
    options: dict[str, Json] = {"its pin": {"pin": "m.a"}, "a seat lent to it": {}}.get(
        needs, {"avoid": ["m.b"]}
    )
    start(grid, "m.a")
    start(grid, "m.b", lent_to=("somebody",) if needs == "a seat lent to it" else ())
    end(grid, "m.a")
    back = threading.Timer(0.6, start, (grid, "m.a"), {"inc": "i2"})
    back.start()
    started = time.monotonic()
    assert client.status(client.submit(echo_graph(), 1, **options)) == "running"
    assert time.monotonic() - started >= 0.5
    back.join()


@pytest.mark.parametrize(
    "why", ["never there", "gone long ago", "lent to others", "another queue", "avoided"]
)
def test_a_job_does_not_wait_for_a_seat_that_will_not_take_it(
    client: Client, grid: Grid, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    start(grid, "m.b")
    if why == "another queue":
        grid.seat("m.a", "bench:other")
    elif why != "never there":
        start(grid, "m.a", lent_to=("somebody",) if why == "lent to others" else ())
    end(grid, "m.a")
    if why == "gone long ago":
        monkeypatch.setattr(served_queues, "RECENT_SECONDS", -1.0)
    with pytest.raises(NoLiveSeat) as caught:
        client.submit(echo_graph(), 1, **({"avoid": ["m.a", "m.b"]} if why == "avoided" else {"pin": "m.a"}))
    assert "waited_seconds" not in caught.value.details
    assert caught.value.details["path"] == ("avoid" if why == "avoided" else "pin")


def test_the_wait_for_a_pinned_seat_ends_in_time(client: Client, grid: Grid) -> None:
    start(grid, "m.a")
    start(grid, "m.b")
    end(grid, "m.a")
    with pytest.raises(NoLiveSeat) as caught:
        client.submit(echo_graph(), 1, pin="m.a", queue_timeout=0.3)
    assert 0.3 <= caught.value.details["waited_seconds"] < 5  # type: ignore[operator]
