"""A seat that is lent only to some agents: refusals, waiting jobs and their reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gridq.cli.commands.explain import explain_graph
from gridq.client import Client
from gridq.config.settings import Settings
from gridq.errors import NoLiveSeat
from gridq.protocol.models import SeatTerms
from gridq.seats import registry
from gridq.store.connection import connect
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import LocalGrid
from tests.waiting import wait_for
from workers.process.heartbeat import Heartbeat

pytestmark = pytest.mark.usefixtures("key_hygiene")

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LocalGrid]:
    """A grid of one seat, which is lent to the agent ci and the team research."""
    config = Settings(broker_url=grid_env.url, prefix=grid_env.prefix, profiles=(BENCH,), renew_ms=100)
    with LocalGrid(connect(grid_env.url), config, {"m.bench": ["bench:any"]}) as made:
        session = made.sessions["m.bench"]
        session.terms = SeatTerms(lends_to=("ci", "team:research"))
        session.register()
        Heartbeat(
            made.scripts.client, config, session, machine="m", kind="bench", capability={}, owner="alice"
        ).beat()
        yield made


def test_only_allowed_agents_are_served(grid: LocalGrid) -> None:
    client = grid.client
    with pytest.raises(
        NoLiveSeat, match="No live seat of bench:any is lent to the agent 'default'"
    ) as caught:
        client.submit(ECHO, 1)
    assert caught.value.reason == "m.bench is lent only to ci, team:research"
    assert caught.value.path == "agent"  # so that a gateway does not let it wait: no seat is missing
    assert client.run(ECHO, 2, agent="ci", timeout=20) == 2
    with pytest.raises(NoLiveSeat, match=r"The seat m\.bench is not lent to the agent 'default'"):
        client.submit(ECHO, 1, pin="m.bench")
    assert client.run(ECHO, 3, agent="ci", pin="m.bench", timeout=20) == 3
    [seat] = client.workers()
    assert (seat.owner, seat.lends_to) == ("alice", ["ci", "team:research"])


def test_a_waiting_job_names_the_reason_and_runs_on_another_seat(grid: LocalGrid, grid_env: GridEnv) -> None:
    client: Client = grid.client
    job = client.submit(ECHO, 4, wait_for_seat=True)
    assert client.waits_for(job).endswith("to run bench_echo: m.bench is lent only to ci, team:research")
    assert client.run(ECHO, 5, agent="ci", timeout=20) == 5
    with LocalGrid(connect(grid_env.url), grid.config, {"m.other": ["bench:any"]}):
        assert client.result(job, 20) == 4
        assert [row.worker for row in client.rows(job)] == ["m.other"]
        with pytest.raises(NoLiveSeat, match="is not lent"):
            client.submit(ECHO, 1, pin="m.bench")
        assert client.run(ECHO, 6, avoid=("m.bench",), timeout=20) == 6


def test_members_of_an_allowed_team_are_served(grid: LocalGrid) -> None:
    grid.scripts.apply_limits("d", "{}", {"a:ann": "research - -"})
    assert grid.client.run(ECHO, 1, agent="ann", timeout=20) == 1
    assert grid.client.run(ECHO, 2, agent="ann", pin="m.bench", timeout=20) == 2
    for agent, able, why in (
        ("ann", ["m.bench"], ""),
        ("ci", ["m.bench"], ""),
        ("bob", [], "m.bench: it is lent only to ci, team:research"),
        (None, [], "m.bench: it is lent only to ci, team:research"),
    ):
        report = explain_graph(grid.client, json.dumps(ECHO), grid.config, agent)
        (step,) = report["steps"]
        assert (step["seats"], step["no_seat_reason"]) == (able, why)
        assert report["team"] == ("research" if agent == "ann" else None)
    with pytest.raises(NoLiveSeat):
        grid.client.submit(ECHO, 1, agent="bob")
    grid.scripts.apply_limits("", "", {})


def test_a_live_seat_states_whom_it_is_lent_to(grid: LocalGrid) -> None:
    live = registry.read_live_seats(grid.scripts.client, grid.scripts.keys)
    assert [seat.is_lent_to("ci") for seat in live] == [True]
    assert not live[0].is_lent_to("bob")
    assert live[0].is_lent_to("bob", "research")
    assert not live[0].is_lent_to("research")
    wait_for(lambda: grid.scripts.client.exists(grid.scripts.keys("lent_seats")))
