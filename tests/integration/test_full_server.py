"""A server whose memory is used up by a backlog: new jobs are refused with a reason, running ones finish, and
it recovers by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from gridq.app import configure
from gridq.client import Client
from gridq.config.settings import Settings, settings
from gridq.errors import BrokerRefused, GridError, GridFull
from gridq.store.capacity import FULL_SHARE
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from gridq.submission.inbox import Inbox
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import LocalGrid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

LIMIT = 20_000_000
PATIENT = {"result_ttl": 60.0}
"""Settings of a client that reads many answers one after the other."""
TEXT = "x" * 10_000
ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


@pytest.fixture
def config(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of a grid on a server of its own with little memory, where answers are kept for a second."""
    with EmbeddedServer(maxmemory=LIMIT) as server:
        monkeypatch.setenv("GRIDQ_BROKER_URL", server.url)
        monkeypatch.setenv("GRIDQ_PROFILES", BENCH)
        monkeypatch.setenv("GRIDQ_RESULT_TTL", "1")
        monkeypatch.setenv("GRIDQ_SWEEP_MS", "50")
        settings.cache_clear()
        configure(settings())
        yield settings()


@pytest.fixture
def own(config: Settings) -> Iterator[redis.Redis]:
    with connect(config.broker_url.get_secret_value()) as client:
        yield client


def _until_refused(submit: Callable[[], object]) -> GridError:
    """Submit jobs until one is refused; return the error."""

    def refusal() -> GridError | None:
        try:
            submit()
        except GridError as exc:
            return exc
        return None

    found = wait_for(refusal, 60, poll=0)
    assert found is not None
    return found


def test_a_backlog_fills_the_grid_and_running_jobs_empty_it(config: Settings, own: redis.Redis) -> None:
    inbox = Inbox(Scripts(own, config), config)
    with Client(config=config) as client:
        jobs: list[str] = []

        def submit() -> None:
            jobs.append(client.submit(ECHO, TEXT, wait_for_seat=True))

        with LocalGrid(own, config, {}):  # no seat, only a sweeper
            error = _until_refused(submit)
            assert isinstance(error, GridFull), error
            assert error.details["limit"] == LIMIT
            assert error.details["used"] >= FULL_SHARE * LIMIT
            assert "maxmemory" in str(error.fix)
            with pytest.raises(GridFull):
                inbox.enqueue("0" * 32, ECHO, TEXT, celery=True)
            assert client.status("0" * 32) is None
        assert len(jobs) > 500
        patient = config.model_copy(update=PATIENT)
        with LocalGrid(own, config, {"m.a": ["bench:any"]}), Client(config=patient) as other:
            job = _until_accepted(lambda: other.submit(ECHO, TEXT, wait_for_seat=True))
            assert other.result(job, 60) == TEXT


def _until_accepted(submit: Callable[[], str]) -> str:
    """Submit a job again and again until it is accepted; return its id."""

    def accepted() -> str:
        try:
            return submit()
        except GridFull:
            return ""

    return wait_for(accepted, 60)


def test_without_memory_running_jobs_end_and_new_ones_are_refused(config: Settings, own: redis.Redis) -> None:
    """Every write that needs memory is refused, except those of running jobs."""
    config = config.model_copy(update=PATIENT)
    with Client(config=config) as client:
        values = {"short": "x", "long": "x" * 100_000}
        jobs = {name: client.submit(ECHO, value, wait_for_seat=True) for name, value in values.items()}
        chain = {"op": "Sequential", "stages": [ECHO["root"], {"op": "Stage", "id": "bench_echo"}]}
        jobs["chain"] = client.submit({"root": chain}, "x" * 100_000, wait_for_seat=True)
        streamed = client.submit(
            {"root": {"op": "Stage", "id": "bench_tokens"}}, {"n": 3}, wait_for_seat=True, stream=True
        )
        late = client.submit(ECHO, 1, wait_for_seat=True, deadline=0.2)
        cancelled = client.submit(ECHO, 2, wait_for_seat=True)
        own.config_set("maxmemory", 1)
        assert client.cancel(cancelled)
        with pytest.raises(GridError, match=r"job\.deadline"), LocalGrid(own, config, {}):
            client.result(late, 30)
        before = own.dbsize()
        with pytest.raises(BrokerRefused, match="out of memory"):
            client.submit(ECHO, "x", wait_for_seat=True)
        with pytest.raises(BrokerRefused, match="out of memory"):
            Inbox(Scripts(own, config), config).enqueue("0" * 32, ECHO, TEXT, celery=True)
        assert own.dbsize() == before, "half of a job was written"
        with LocalGrid(own, config, {"m.a": ["bench:any"]}):
            for name, job in jobs.items():
                assert client.result(job, 60) == values.get(name, "x" * 100_000)
            assert len(list(client.stream(streamed, 60))) == 3
            own.config_set("maxmemory", LIMIT)
            assert client.run(ECHO, 3, 60) == 3
