"""The end of workers and routers: after one signal, after two, and during an outage; and a restart."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.errors import NoLiveSeat
from tests.acceptance.grids import WholeGrid, whole
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = pytest.mark.slow

LONG_DRAIN = "300"
"""A drain that no test waits for."""

LONG = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 120_000}}}
CONSTANT = {"root": {"op": "Const", "value": 1}}
ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}
SHORT = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 1500}}}


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    with whole(
        tmp_path_factory.mktemp("ending"), server.url, {"bench": 2}, drain=1, env={"GRIDQ_DRAIN": LONG_DRAIN}
    ) as made:
        yield made


@pytest.fixture
def grid(shared: WholeGrid, request: pytest.FixtureRequest) -> WholeGrid:
    """A router, and a bench seat of two slots with the drain that the test names."""
    home, drain = shared.home, getattr(request, "param", LONG_DRAIN)
    worker = home.children["bench"]
    if worker.poll() is None and home.env["GRIDQ_DRAIN"] != drain:
        worker.send_signal(signal.SIGQUIT)
        end(worker)
    if worker.poll() is not None:
        home.env["GRIDQ_DRAIN"] = drain
        wait_for(lambda: not shared.client.workers())
        home.spawn("bench")
        wait_for(shared.client.workers)
    return shared


def running(client: Client) -> bool:
    return sum(seat.busy for seat in client.workers()) == 1


def end(child: subprocess.Popen[bytes]) -> int:
    return wait_for(lambda: [child.poll()] if child.poll() is not None else [], 60)[0]


def test_one_signal_lets_running_stages_finish(grid: WholeGrid) -> None:
    client, worker = grid.client, grid.home.children["bench"]
    job = client.submit(SHORT, 1)
    wait_for(lambda: running(client))
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: [seat.state for seat in client.workers()] in (["draining"], []))
    with pytest.raises(NoLiveSeat):
        client.submit(SHORT, 2, queue_timeout=0.1)
    assert client.result(job, timeout=60) == {"items": 1, "ms": 1500}
    assert end(worker) == 0
    assert [row.attempt for row in client.rows(job)] == [1]


@pytest.mark.parametrize("grid", ["0.5"], indirect=True, ids=["short"])
def test_after_the_drain_running_stages_are_handed_back(grid: WholeGrid) -> None:
    client, worker = grid.client, grid.home.children["bench"]
    job = client.submit(LONG, 1)
    wait_for(lambda: running(client))
    worker.send_signal(signal.SIGTERM)
    assert end(worker) == 0
    [stage] = client.view(job).stages
    assert (stage.state, stage.failures) == ("ready", 0)
    client.cancel(job)


@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGQUIT,),
    ],
    ids=lambda given: "-".join(number.name for number in given),
)
def test_a_second_signal_hands_back_at_once(grid: WholeGrid, signals: tuple[signal.Signals, ...]) -> None:
    client, worker = grid.client, grid.home.children["bench"]
    job = client.submit(LONG, 1)
    wait_for(lambda: running(client))
    for number, each in enumerate(signals, 1):
        worker.send_signal(each)
        if number < len(signals):
            wait_for(lambda: [seat.state for seat in client.workers()] == ["draining"])
            assert worker.poll() is None, "it waits for the running stage"
    assert end(worker) in (0, 1)
    [stage] = client.view(job).stages
    assert (stage.state, stage.failures) == ("ready", 0)
    assert not client.workers(), "it has deregistered"
    client.cancel(job)


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sighup_restarts_a_worker_in_the_same_process(grid: WholeGrid) -> None:
    client, worker = grid.client, grid.home.children["bench"]
    [before] = client.workers()
    wait_for(lambda: handles(worker.pid, signal.SIGHUP))
    worker.send_signal(signal.SIGHUP)
    wait_for(lambda: [seat.incarnation for seat in client.workers()] not in ([], [before.incarnation]))
    assert worker.poll() is None
    assert client.result(client.submit(ECHO, 1), timeout=60) == 1


def test_sigquit_ends_a_router(grid: WholeGrid) -> None:
    """The last test of this grid."""
    router = grid.home.children["router0"]
    router.send_signal(signal.SIGQUIT)
    assert end(router) in (0, 1)
    assert [seat.kind for seat in grid.client.seats()] == ["bench"]


def test_idle_programs_end_while_the_server_is_away(tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path / "data") as server,
        whole(tmp_path, server.url, {"bench": 2}, drain=1) as own,
    ):
        for graph in (CONSTANT, ECHO):  # what the router and the worker do once they have started
            own.client.result(own.client.submit(graph, 1), 60)
        server.kill()
        children = list(own.home.children.values())
        for child in children:
            child.send_signal(signal.SIGTERM)
        assert {end(child) for child in children} <= {0, 1}
        server.start()
