"""Cancels: durable, effective in every state of the job, and ending what runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from gridq import errors, stages
from gridq.app import app
from gridq.client import Client
from gridq.config.settings import Settings
from gridq.limits.accounts import read_accounts
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.profiles.profile import StageContext
from gridq.protocol.meters import parse_budget
from gridq.protocol.models import Json, StageCall, Usage
from gridq.protocol.states import JobState
from gridq.store.connection import connect
from gridq.submission import inbox
from gridq.submission.admission import Admission
from gridq.tasks import run_graph
from tests.builders import retry, seq, stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BenchProfile
from tests.fakes.openai_server import OpenAIServer
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability
from workers.supervisor.embedded_server import EmbeddedServer

ECHO = {"root": stage("bench_echo")}
SLEEP = {"root": stage("bench_sleep", ms=60_000)}


class ActingRunner(BenchRunner):
    """Runs `act`, if it is set, instead of the next stage."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[Json, StageContext], Json] | None = None

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if self.act is None:
            return super().__call__(stage, value, context)
        act, self.act = self.act, None
        return act(value, context)


class OneSlot:
    """A grid of one bench seat with one slot, and its runner."""

    def __init__(self, grid: LocalGrid, runner: ActingRunner) -> None:
        self.grid = grid
        self.runner = runner
        self.client = grid.client
        self.session = grid.sessions["m.a"]
        self.redis: Any = grid.scripts.client
        self.keys = grid.scripts.keys

    def count_running(self) -> int:
        return int(self.redis.hlen(self.keys("slots", "m.a")))

    def running(self, graph: dict[str, Any] = SLEEP, value: Json = None, **options: Any) -> str:
        """Submit a job and return it once its stage runs."""
        job = self.client.submit(graph, value, **options)
        wait_for(self.count_running)
        return job


def grid_of(server: EmbeddedServer, prefix: str, **settings: Any) -> tuple[redis.Redis, Settings]:
    config = Settings(broker_url=server.url, prefix=prefix, profiles=(), retry_backoff=0.05, **settings)
    return connect(server.url), config


@pytest.fixture
def slot(server: EmbeddedServer) -> Iterator[OneSlot]:
    client, config = grid_of(server, "cancel:", sweep_ms=50, lease_ms=2000, renew_ms=200)
    runner = ActingRunner()
    seats: dict[str, Sequence[str]] = {"m.a": ["bench:any"]}
    with LocalGrid(client, config, seats, concurrency=1, runner=runner) as grid:
        grid.client._admission = Admission(grid.scripts, config, {"bench": BenchProfile()})
        yield OneSlot(grid, runner)
    for key in client.scan_iter("cancel:*", count=1000):
        client.unlink(key)
    client.close()


def cancelled(slot: OneSlot, job: str) -> None:
    with pytest.raises(errors.JobCancelled):
        slot.client.result(job, timeout=20)
    assert slot.client.status(job) is JobState.CANCELLED


def test_a_running_stage_is_stopped_between_two_renewals(slot: OneSlot) -> None:
    slot.session._renewer.stop()  # the seat lives for a lease yet
    stopped = threading.Event()

    def act(value: Json, context: StageContext) -> Json:
        context.on_cancel(stopped.set)
        context.cancelled.wait(60)
        context.check()
        return value

    slot.runner.act = act
    job = slot.running(ECHO)
    assert slot.client.cancel(job)
    assert stopped.wait(20)
    cancelled(slot, job)


def test_an_idle_seat_polls_nothing_between_renewals(slot: OneSlot, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts, looks = slot.session.scripts, []
    fenced = scripts.find_fenced

    def ask(leases: Sequence[str]) -> list[str]:
        looks.append(leases)
        return fenced(leases)

    monkeypatch.setattr(scripts, "find_fenced", ask)
    for _ in range(10):
        slot.session.check_running()
    assert looks == []
    job = slot.running()
    wait_for(lambda: looks)
    slot.client.cancel(job)


def test_a_job_that_waits_for_a_slot_is_cancelled(slot: OneSlot) -> None:
    first, second = slot.running(), slot.client.submit(ECHO, 1)
    assert slot.client.cancel(second)
    cancelled(slot, second)
    assert slot.client.cancel(first)
    assert slot.client.run(ECHO, 2, timeout=20) == 2


def test_a_job_in_the_delay_of_a_retry_is_cancelled(slot: OneSlot) -> None:
    graph = {"root": seq(stage("bench_echo"), retry(stage("bench_fail"), 3, delay_ms=60_000))}
    job = slot.client.submit(graph, {})
    wait_for(
        lambda: any(entry.startswith(b"retry:") for entry in slot.redis.zrange(slot.keys("delays"), 0, -1))
    )
    assert slot.client.cancel(job)
    cancelled(slot, job)
    assert not slot.redis.exists(slot.keys("job", job))


def test_a_job_that_has_ended_is_not_cancelled(slot: OneSlot) -> None:
    job = slot.client.submit(ECHO, 1)
    assert slot.client.result(job, timeout=20) == 1
    assert slot.client.cancel(job) is False
    assert slot.client.result(job) == 1
    with pytest.raises(errors.JobNotFound):
        slot.client.cancel("nobody")


def test_nothing_is_emitted_after_a_cancel(slot: OneSlot) -> None:
    go_on, ended = threading.Event(), threading.Event()

    def act(value: Json, context: StageContext) -> Json:
        context.emit("before")
        go_on.wait(20)
        for number in range(5):
            context._emit(number)  # type: ignore[misc]  # past the context's own look
        ended.set()
        return "all the same"

    slot.runner.act = act
    job = slot.running(ECHO, stream=True)
    wait_for(lambda: slot.redis.exists(slot.keys("stream", job)))
    assert slot.client.cancel(job)
    go_on.set()
    assert ended.wait(20)
    assert slot.client.run(ECHO, 1, timeout=20) == 1  # the slot has come to the end of it
    entries = [fields for _, fields in slot.redis.xrange(slot.keys("stream", job))]
    assert [entry.get(b"piece") for entry in entries] == [b'"before"', None]
    assert entries[-1] == {b"end": b"cancelled"}
    assert slot.client.rows(job) == []


def test_code_that_does_not_stop_is_left_behind(slot: OneSlot) -> None:
    """Its slot takes other work, and no slot is left over when the code ends at last."""
    release = threading.Event()
    ended = threading.Event()

    def act(value: Json, context: StageContext) -> Json:
        release.wait(60)
        ended.set()
        return "late"

    slot.runner.act = act
    job = slot.running(ECHO)
    assert slot.client.cancel(job)
    cancelled(slot, job)
    assert [slot.client.run(ECHO, n, timeout=20) for n in range(3)] == [0, 1, 2]
    assert not ended.is_set()
    release.set()
    assert ended.wait(20)
    wait_for(lambda: not slot.session._abandoned)
    assert [slot.client.run(ECHO, n, timeout=20) for n in range(3)] == [0, 1, 2]
    wait_for(lambda: len(slot.session._free_slots) == 1)
    assert slot.client.status(job) is JobState.CANCELLED


def test_a_stage_over_its_time_that_does_not_stop_fails_and_is_left_behind(slot: OneSlot) -> None:
    release = threading.Event()

    def act(value: Json, context: StageContext) -> Json:
        context.report(Usage(micro_dollars=300))
        release.wait(60)
        context.report(Usage(micro_dollars=900))
        return "late"

    config = slot.session.config.model_copy(update={"stage_timeout": 0.3})
    slot.session.config = config
    slot.redis.hset(slot.keys("seat", "m.a"), "own", "money/month/10000/0/0/")
    slot.runner.act = act
    job = slot.client.submit(ECHO, 1)
    with pytest.raises(errors.StageTimeout) as caught:
        slot.client.result(job, timeout=20)
    assert (caught.value.code, caught.value.path) == ("stage.timeout", "root")
    assert slot.client.run(ECHO, 2, timeout=20) == 2

    def left() -> int:
        return parse_budget(slot.redis.hget(slot.keys("seat", "m.a"), "own"), "own", 0)[0].remaining

    assert left() == 10_000 - 300  # as far as it was known
    release.set()
    wait_for(lambda: left() == 10_000 - 900)


def test_a_stream_that_flows_outlives_the_stage_timeout(slot: OneSlot) -> None:
    flowed: list[float] = []

    def act(value: Json, context: StageContext) -> Json:
        begun = time.monotonic()
        for number in range(value):
            context.emit(number)
            assert not context.cancelled.wait(0.1)
        flowed.append(time.monotonic() - begun)
        context.cancelled.wait(10 if value == 12 else 0)
        context.check()
        return "whole"

    slot.session.config = slot.session.config.model_copy(update={"stage_timeout": 0.5})
    slot.runner.act = act
    assert slot.client.run(ECHO, 11, timeout=20, stream=True) == "whole"
    slot.runner.act = act
    with pytest.raises(errors.GridError) as caught:  # it says nothing for longer than the timeout
        slot.client.run(ECHO, 12, timeout=20, stream=True)
    assert caught.value.code == "stage.timeout"
    assert min(flowed) > 1.0


def test_a_queue_timeout_a_stage_timeout_and_a_deadline_are_different_errors(slot: OneSlot) -> None:
    busy = slot.running()
    with pytest.raises(errors.QueueTimeout) as queue:
        slot.client.run(ECHO, 1, timeout=20, queue_timeout=0.2)
    with pytest.raises(errors.DeadlineExceeded) as deadline:
        slot.client.run(ECHO, 1, timeout=20, deadline=0.2)
    slot.client.cancel(busy)
    slot.session.config = slot.session.config.model_copy(update={"stage_timeout": 0.2})
    with pytest.raises(errors.StageTimeout) as stage_timeout:
        slot.client.run(SLEEP, timeout=20)
    codes = [caught.value.code for caught in (queue, deadline, stage_timeout)]
    assert codes == ["job.queue_timeout", "job.deadline", "stage.timeout"]
    assert queue.value.details["seconds"] == deadline.value.details["seconds"] == 0.2
    assert queue.value.details["queue"] == "bench:any"
    assert queue.value.reason == "all slots of its seats were busy (1)"
    assert [caught.value.path for caught in (queue, deadline, stage_timeout)] == ["root"] * 3


def test_revoke_needs_no_worker_and_no_router(grid_env: GridEnv) -> None:
    """Celery's own revoke is a broadcast, which is lost if no worker listens."""
    inbox.get_default_inbox.cache_clear()
    with Client(config=grid_env.settings) as client:
        waits, by_control, ended = (run_graph.delay(ECHO, n) for n in range(3))
        waits.revoke()
        with pytest.raises(errors.JobCancelled, match="revoked"):
            waits.get(timeout=5)
        app.control.revoke([by_control.id, "nobody"])
        assert client.status(by_control.id) is JobState.CANCELLED
        client.scripts.stop(ended.id, "failed", errors.StageError("no").to_json())
        ended.revoke(terminate=True)
        assert client.status(ended.id) is JobState.FAILED
        waits.revoke()
        for result in (waits, by_control, ended):
            result.forget()
    inbox.get_default_inbox.cache_clear()


class SeatAtEndpoint:
    """Runs model stages at an endpoint, and others like the bench."""

    def __init__(self, url: str) -> None:
        self.profile = LlmProfile()
        model = {"name": "metered", "families": ["talk"], "price_in": 1.0, "price_out": 10.0}
        self.capability = LlmCapability.model_validate({"host": "h", "models": [model]})
        seat = {"name": "main", "url": url, "models": [model], "allow_loopback": True}
        self.profile.open(self.capability, seat)

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation.startswith("builtin:"):
            return stages.run_builtin(stage, value, context)
        return self.profile.run(stage, value, context)


def test_a_cancelled_model_call_is_waste_of_the_seat(server: EmbeddedServer) -> None:
    client, config = grid_of(server, "cancelwire:", sweep_ms=50, lease_ms=2000, renew_ms=200)
    with OpenAIServer() as api:
        runner = SeatAtEndpoint(api.url)
        with LocalGrid(
            client, config, {"m.llm": ["llm:metered", "llm:any"]}, concurrency=1, runner=runner
        ) as grid:
            put_in_force(grid.scripts, parse("[agents.ann]\nmonthly_dollars = 1", "q.toml"), "a test")
            grid.client._admission = Admission(grid.scripts, config, {"llm": LlmProfile()})
            keys = grid.scripts.keys
            client.hset(keys("seat", "m.llm"), "own", "money/month/1000000/0/0/")
            job = grid.client.submit(
                {"root": stage("llm_complete", prompt="hello")}, agent="ann", stream=True
            )  # fmt: skip
            next(iter(grid.client.stream(job, timeout=20)))
            assert grid.client.cancel(job)
            assert api.disconnected.wait(20)

            def left() -> int:
                return parse_budget(client.hget(keys("seat", "m.llm"), "own"), "own", 0)[0].remaining

            wait_for(lambda: left() < 1_000_000)
            spent = 1_000_000 - left()
            assert spent >= 100 + 10  # a hundred tokens in, and one out
            assert spent % 10 == 0
            accounts = {(one.name, one.what): one for one in read_accounts(client, keys, "UTC").accounts}
            assert accounts["ann", "money"].spent == accounts["ann", "money"].reserved == 0
        runner.profile.close()
    for key in client.scan_iter("cancelwire:*", count=1000):
        client.unlink(key)
    client.close()
