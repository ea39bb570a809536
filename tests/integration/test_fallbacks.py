"""Graphs with stages that accept several capabilities: the seat that runs them, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.cli.commands.explain import explain_graph
from gridq.cli.commands.jobs import make_stages_table
from gridq.client.broker_client import BrokerClient
from gridq.config.settings import Settings
from gridq.errors import DeadlineUnreachable, InvalidField, NoLiveSeat
from gridq.protocol import queue_names
from gridq.protocol.models import ServiceTime
from gridq.store.connection import connect
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import LocalGrid
from tests.waiting import wait_for
from workers.process.heartbeat import Heartbeat

pytestmark = pytest.mark.usefixtures("key_hygiene")


def graph(stage: str = "bench_echo", slug: Any = ("one", "two"), **config: Any) -> dict[str, Any]:
    """Return a graph of one stage that accepts several slugs."""
    return {"root": {"op": "Stage", "id": stage, "config": {"slug": list(slug), **config}}}


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LocalGrid]:
    """A grid of a seat of bench:one, the preferred slug, and one of bench:two."""
    config = Settings(
        broker_url=grid_env.url, prefix=grid_env.prefix, profiles=(BENCH,), renew_ms=100, retry_backoff=0.0
    )
    seats = {"m.one": ["bench:one"], "m.two": ["bench:two"], "m.router": [queue_names.PURE]}
    with LocalGrid(connect(grid_env.url), config, seats) as made:
        for name in ("one", "two"):
            capability = {"slugs": [name]}
            beat = Heartbeat(
                made.scripts.client,
                config,
                made.sessions[f"m.{name}"],
                machine="m",
                kind="bench",
                capability=capability,
            )
            beat.beat()
        yield made


def ran(grid: LocalGrid, job: str) -> list[tuple[str, str, str]]:
    return [(row.worker, row.queue, row.state) for row in grid.client.rows(job)]


def test_the_preferred_seat_runs_the_stage_while_it_takes_work(grid: LocalGrid) -> None:
    client = grid.client
    job = client.submit(graph(), 1)
    assert client.result(job, 20)["items"] == 1
    assert ran(grid, job) == [("m.one", "bench:one", "done")]
    grid.sessions["m.one"].drain()
    job = client.submit(graph(), 2)
    assert client.result(job, 20)["items"] == 2
    assert ran(grid, job) == [("m.two", "bench:two", "done")]


def test_a_failed_stage_goes_to_the_fallback(grid: LocalGrid) -> None:
    job = grid.client.submit(graph("bench_seat_fail", times=1, key=grid.config.prefix), {})
    grid.client.result(job, 20)
    assert ran(grid, job) == [("m.one", "bench:one", "failed"), ("m.two", "bench:two", "done")]


def test_a_waiting_job_names_its_queue_and_its_fallbacks(grid: LocalGrid) -> None:
    for name in ("m.one", "m.two"):
        grid.sessions[name].drain()
    job = grid.client.submit(graph(), 1, wait_for_seat=True)
    [stage] = grid.client.view(job).stages
    assert (stage.queue, stage.links) == ("bench:one", ("bench:one", "bench:two"))
    assert list(make_stages_table(grid.client.view(job)).columns[3].cells) == ["bench:one (of 2)"]
    assert "a seat of bench:one or bench:two" in grid.client.waits_for(job)
    grid.sessions["m.two"].draining = False
    grid.sessions["m.two"].register()
    grid.client.result(job, 20)
    assert ran(grid, job) == [("m.two", "bench:two", "done")]


def test_pin_and_avoid_apply_to_every_queue(grid: LocalGrid) -> None:
    client = grid.client
    for options, worker in (
        ({"pin": "m.two"}, "m.two"),
        ({"avoid": ("m.one",)}, "m.two"),
        ({"pin": "m.one"}, "m.one"),
    ):
        job = client.submit(graph(), 1, **options)  # type: ignore[arg-type]
        client.result(job, 20)
        assert [who for who, _, _ in ran(grid, job)] == [worker]
    with pytest.raises(
        NoLiveSeat, match="The option avoid excludes every live seat of bench:one or bench:two"
    ):
        client.submit(graph(), 1, avoid=("m.one", "m.two"), queue_timeout=0.1)


def test_a_refusal_names_every_queue(grid: LocalGrid) -> None:
    with pytest.raises(NoLiveSeat, match="No live seat serves bench:rare or bench:rarer") as refused:
        grid.client.submit(graph(slug=("rare", "rarer")), 1)
    assert refused.value.details["queues"] == ["bench:rare", "bench:rarer"]
    assert refused.value.details["capability"] == "bench:rare"
    assert grid.client.run(graph(slug=("rare", "two")), 3, timeout=20)["items"] == 3


def test_the_forecast_is_that_of_the_served_queue(grid: LocalGrid) -> None:
    two = grid.sessions["m.two"]
    slow = ServiceTime(n=50, mean=60.0, p50=60.0, p90=60.0)
    beat = Heartbeat(
        grid.scripts.client, grid.config, two, machine="m", kind="bench", capability={"slugs": ["two"]}
    )
    ad = beat.build_advertisement().model_copy(update={"service": {"bench:two": slow}})
    grid.scripts.client.set(grid.scripts.keys("advertisement", "m.two"), ad.model_dump_json(), px=60_000)
    jobs = [grid.client.submit(graph("bench_sleep", slug=("two",), ms=3000), {}) for _ in range(4)]
    wait_for(lambda: two.busy == 2)
    with pytest.raises(DeadlineUnreachable, match="a stage of bench:two would start in"):
        grid.client.submit(graph(slug=("rare", "two")), 1, deadline=2)
    assert grid.client.run(graph(), 1, deadline=20, timeout=20)["items"] == 1
    for job in jobs:
        grid.client.cancel(job)


def test_explain_names_the_queue_and_its_seats(grid: LocalGrid) -> None:
    with BrokerClient(grid.config.broker_url.get_secret_value(), config=grid.config) as client:
        [step] = explain_graph(client, json.dumps(graph(slug=("rare", "two"))), grid.config)["steps"]
        assert (step["queue"], step["queues"], step["seats"]) == (
            "bench:two",
            ["bench:rare", "bench:two"],
            ["m.two"],
        )
        [step] = explain_graph(client, json.dumps(graph(slug=("rare", "rarer"))), grid.config)["steps"]
    assert (step["queue"], step["seats"]) == ("bench:rare", [])
    assert (
        step["no_seat_reason"].count("bench serve") == 1
    )  # the reason is the same for both, and is given once


def test_an_invalid_list_of_fallbacks_is_refused(grid: LocalGrid) -> None:
    for slugs in ([], ["one", 3]):
        with pytest.raises(InvalidField):
            grid.client.submit(graph(slug=slugs), 1)
