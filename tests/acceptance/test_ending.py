"""How `celery -A workers worker` and a router end: by one signal, by two, and where their server is away."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.errors import NoLiveSeat
from gridq.settings import Settings
from tests.pointed import pointed_at
from tests.waiting import wait_for
from workers.embedded import EmbeddedServer
from workers.home import Home

pytestmark = pytest.mark.slow

OFTEN = 300
"""A drain that no test waits for."""

LONG = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 120_000}}}
SHORT = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 1500}}}


@contextmanager
def grid(folder: Path, url: str, drain: float = OFTEN) -> Iterator[tuple[Client, Home]]:
    """A router and a bench seat of two lanes, each a bare `celery` process."""
    (folder / "home").mkdir(mode=0o700)
    (folder / "home" / "seats.toml").write_text("[bench]\nlanes = 2\n")
    config = Settings(
        broker_url=url,
        prefix=f"end{secrets.token_hex(3)}:",
        home=folder / "home",
        profiles=("bench",),
        drain=1,
    )
    with ExitStack() as stack:
        client = stack.enter_context(pointed_at(config))
        env = {"GRIDQ_DRAIN": str(drain)}
        yield client, stack.enter_context(Home(config, ["bench"], folder=folder / "logs", env=env))


def running(client: Client) -> bool:
    return sum(seat.busy for seat in client.workers()) == 1


def end(child: subprocess.Popen[bytes]) -> int:
    return wait_for(lambda: [child.poll()] if child.poll() is not None else [], 60)[0]


def test_one_signal_lets_what_runs_finish_and_takes_nothing_more(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    with grid(tmp_path, server.url) as (client, home):
        job = client.submit(SHORT, 1)
        wait_for(lambda: running(client))
        worker = home.children["bench"]
        worker.send_signal(signal.SIGTERM)
        wait_for(lambda: [seat.state for seat in client.workers()] in (["draining"], []))
        with pytest.raises(NoLiveSeat):
            client.submit(SHORT, 2)
        assert client.result(job, timeout=60) == {"items": 1, "ms": 1500}
        assert end(worker) == 0
        assert [row.attempt for row in client.rows(job)] == [1]


def test_after_the_drain_the_rest_is_handed_back_with_its_attempt_unspent(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    with grid(tmp_path, server.url, drain=0.5) as (client, home):
        job = client.submit(LONG, 1)
        wait_for(lambda: running(client))
        home.children["bench"].send_signal(signal.SIGTERM)
        assert end(home.children["bench"]) == 0
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
def test_a_second_signal_hands_back_at_once(
    tmp_path: Path, server: EmbeddedServer, signals: tuple[signal.Signals, ...]
) -> None:
    with grid(tmp_path, server.url) as (client, home):
        job = client.submit(LONG, 1)
        wait_for(lambda: running(client))
        worker = home.children["bench"]
        for number, each in enumerate(signals, 1):
            worker.send_signal(each)
            if number < len(signals):
                wait_for(lambda: [seat.state for seat in client.workers()] == ["draining"])
                assert worker.poll() is None, "it waits for what runs"
        assert end(worker) in (0, 1)
        [stage] = client.view(job).stages
        assert (stage.state, stage.failures) == ("ready", 0)
        assert not client.workers(), "it has said that it goes"
        client.cancel(job)


def test_who_is_idle_ends_though_the_server_is_away(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server, grid(tmp_path, server.url) as (_, home):
        server.kill()
        children = list(home.children.values())
        for child in children:
            child.send_signal(signal.SIGTERM)
        assert {end(child) for child in children} <= {0, 1}
        server.start()


def test_sigquit_ends_a_router(tmp_path: Path, server: EmbeddedServer) -> None:
    with grid(tmp_path, server.url) as (client, home):
        router = home.children["router0"]
        os.kill(router.pid, signal.SIGQUIT)
        assert end(router) in (0, 1)
        assert [seat.kind for seat in client.seats()] == ["bench"]
