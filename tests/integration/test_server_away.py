"""A server that goes away for a while: what runs goes on, and its result is kept until it can be recorded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.execution.session import Session
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from tests.fakes.bench_profile import BENCH
from tests.local_grid import DEFAULT_SEATS, BenchRunner, LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer


def test_a_result_made_while_the_server_was_away_is_recorded_once(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data", appendonly=True) as server:
        config = Settings(broker_url=server.url, prefix="away:", profiles=(BENCH,))
        client = connect(server.url)
        with LocalGrid(client, config, DEFAULT_SEATS) as grid:
            graph = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 1500}}}
            job = grid.client.submit(graph, "kept")
            until = time.monotonic() + 10
            while not client.hlen(grid.scripts.keys("slots", "m.bench")):
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(1.1)  # so that the journal holds the claim: it is written each second
            server.kill()
            time.sleep(8)  # longer than the lease, and than a client's own patience
            server.start()
            assert grid.client.result(job, timeout=30) == {"items": "kept", "ms": 1500}
            assert [row.attempt for row in grid.client.rows(job)] == [1]
        client.close()


def test_a_stopping_seat_logs_once_that_it_drains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        config = Settings(broker_url=server.url, prefix="away:")
        client = connect(server.url, retry=False)
        session = Session(
            Scripts(client, config), config, seat="m.c", host="here", concurrency=1, queues=["bench:any"],
            runner=BenchRunner(),
        )  # fmt: skip
        session.register()
        server.kill()
        assert not session.drain()
        session.stop(0)  # each word that nobody hears takes a worker some seconds
        client.close()
    verbs = [record.getMessage().split(" could not be told that it ")[-1][:6] for record in caplog.records]
    assert verbs == ["drains", "leaves"]


def test_a_stopping_seat_stops_all_its_stages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it cannot hand back is stopped all the same, and no other attempt waits for the server again."""
    contexts: list[StageContext] = []

    def hold(stage: StageCall, value: Json, context: StageContext) -> Json:
        contexts.append(context)
        context.cancelled.wait(30)
        context.check()
        return None

    with EmbeddedServer(tmp_path / "data") as server:
        config = Settings(broker_url=server.url, prefix="away:", profiles=(BENCH,))
        client = connect(server.url, retry=False)
        with LocalGrid(client, config, {"m.c": ["bench:any"]}, concurrency=3, runner=hold) as grid:
            for number in range(3):
                grid.client.submit({"root": {"op": "Stage", "id": "bench_echo"}}, number)
            until = time.monotonic() + 10
            while len(contexts) < 3:
                assert time.monotonic() < until
                time.sleep(0.01)
            server.kill()
            session = grid.sessions["m.c"]
            session.stop(0)
            assert session.stopped
            assert all(context.cancelled.wait(10) for context in contexts)
        client.close()
    assert sum("could not hand back" in message for message in caplog.messages) == 1
