"""Celery's `AsyncResult` during an outage of the server: `get()` waits, other calls raise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.exceptions import TimeoutError as WaitedTooLong
from celery.result import ResultSet

from gridq.app import app
from gridq.config.settings import Settings
from gridq.errors import BrokerRefused, BrokerUnreachable
from gridq.messaging import result_backend
from gridq.protocol.models import Json
from tests.grid_environment import use_grid
from workers.supervisor.embedded_server import EmbeddedServer


@pytest.fixture
def away(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """The server of this process, which is away."""
    with EmbeddedServer(tmp_path / "data") as server:
        config = Settings(broker_url=server.url, prefix="results:", home=tmp_path)
        with use_grid(config):
            server.kill()
            yield server
            if server.pid is None:
                server.start()


def test_get_waits_for_a_server_that_is_away(away: EmbeddedServer) -> None:
    found: list[Json] = []

    def wait(*jobs: str) -> None:  # Celery's results and connections belong to the thread that makes them
        try:
            found.extend(ResultSet([app.AsyncResult(job) for job in jobs], app=app).get(timeout=60))
        finally:
            app.backend.client.connection_pool.disconnect()

    single = threading.Thread(target=wait, args=("one",))
    both = threading.Thread(target=wait, args=("two", "three"))
    threads = (single, both)
    for thread in threads:
        thread.start()
    single.join(4)  # longer than Celery's own patience
    assert all(thread.is_alive() for thread in threads)
    away.start()
    for number, job in enumerate(("one", "two", "three")):
        app.backend.mark_as_done(job, number)
    for thread in threads:
        thread.join(60)
    assert sorted(found, key=str) == [0, 1, 2]


def test_get_honours_its_timeout(away: EmbeddedServer) -> None:
    with pytest.raises(WaitedTooLong):
        app.AsyncResult("one").get(timeout=0.5)


def test_get_gives_up_after_a_long_outage(away: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_backend, "MAX_OUTAGE_SECONDS", 1.0)
    for _ in range(2):  # the second one waits anew
        with pytest.raises(BrokerUnreachable):
            app.AsyncResult("one").get()


def test_reading_a_state_raises_the_servers_fault(away: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable):
        _ = app.AsyncResult("one").state
    away.start()
    url = away.url.replace(away.password, "wrong")
    with (
        pytest.raises(BrokerRefused),
        use_grid(Settings(broker_url=url, prefix="results:", home=tmp_path)),
    ):
        _ = app.AsyncResult("one").state


@pytest.mark.parametrize("lost", ["by itself", "with its thread"])
def test_dropping_a_result_opens_no_connection(away: EmbeddedServer, lost: str) -> None:
    away.start()
    consumer = app.backend.result_consumer
    for job in ("one", "two"):
        consumer.consume_from(job)
    pubsub = consumer._pubsub
    if lost == "by itself":
        pubsub.connection.disconnect()
    else:  # the garbage collector takes the consumer of a thread that has ended, and then its results
        pubsub.reset()
    consumer.cancel_for("one")
    assert pubsub.connection is None or not pubsub.connection.is_connected
    consumer.cancel_for("two")
    assert not consumer.subscribed_to
    assert not pubsub.channels, "a later connection does not subscribe to them"
