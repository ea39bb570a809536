"""A seat that stops while its server is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.execution.session import Session
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from tests.fakes.bench_profile import BENCH
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer


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
        session.stop(0)  # each call that fails takes a worker some seconds
        client.close()
    verbs = [record.getMessage().split(" could not be told that it ")[-1][:6] for record in caplog.records]
    assert verbs == ["drains", "leaves"]


def test_a_stopping_seat_stops_all_its_stages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Stages that it cannot hand back are stopped too, and only one attempt waits for the server."""
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
            wait_for(lambda: len(contexts) == 3)
            server.kill()
            session = grid.sessions["m.c"]
            session.stop(0)
            assert session.stopped
            assert all(context.cancelled.wait(10) for context in contexts)
        client.close()
    assert sum("could not hand back" in message for message in caplog.messages) == 1
