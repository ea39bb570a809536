"""Admission by forecast: full queues, unreachable deadlines, and the details of a refusal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gridq.app import app
from gridq.client.broker_client import BrokerClient as Client
from gridq.errors import DeadlineUnreachable, GridError, NoLiveSeat, QueueDropped, QueueFull
from gridq.jobs.record import End, JobOptions
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.protocol.models import Advertisement, Limit, ServiceTime, Usage
from gridq.router.router import Router
from gridq.seats import registry
from gridq.store.connection import now_ms
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts
from gridq.submission.admission import Admission
from gridq.submission.inbox import Inbox
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BenchProfile
from tests.unit.store.test_commands import commands

pytestmark = pytest.mark.usefixtures("key_hygiene")

ANY, WIDE = "bench:one", "bench:any"
ECHO = {"root": {"op": "Stage", "id": "bench_echo", "config": {"slug": "one"}}}
REFUSAL_FIELDS = {"capability", "bottleneck", "position", "starts_in", "retry_after", "fix"}


@pytest.fixture
def client(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a grid with one seat, of one slot, that takes nothing by itself."""
    monkeypatch.setattr("gridq.submission.start_check.SNAPSHOT_TTL_SECONDS", 0.0)
    with Client(grid_env.url, config=grid_env.settings) as made:
        made._admission = Admission(made.scripts, grid_env.settings, {"bench": BenchProfile()})
        join(made.scripts, "m.a", ANY, WIDE)
        yield made


def join(
    scripts: Scripts, seat: str, *queues: str, took: float | None = 2.0, limits: tuple[Limit, ...] = ()
) -> None:
    """Register a seat whose stages take `took` seconds."""
    scripts.register(seat, "i", host="h", concurrency=1, queues=queues, record_ttl_ms=60_000, limits=limits)
    found = {} if took is None else {q: ServiceTime(n=50, mean=took, p50=took, p90=took) for q in queues}
    ad = Advertisement(
        seat=seat, machine="m", worker=f"{seat}@m", incarnation="i", kind="bench", concurrency=1,
        queues=list(queues), capability={"slugs": ["one"]}, service=found,
    )  # fmt: skip
    registry.advertise(scripts.client, scripts.keys, ad, 60)


def bound(client: Client, most: int, policy: str = "reject") -> None:
    text = f'[queues."{ANY}"]\nmax_pending = {most}\npolicy = "{policy}"'
    put_in_force(client.scripts, parse(text, "q.toml"), "a test")


def backlog(client: Client, count: int = 20, **options: Any) -> list[str]:
    return [client.submit(ECHO, number, **options) for number in range(count)]


def values_left(client: Client) -> list[bytes]:
    return list(client.redis.scan_iter(client.keys("value", "*")))


def test_a_full_queue_refuses_and_stores_nothing(client: Client) -> None:
    bound(client, 3)
    backlog(client, 3)
    with pytest.raises(QueueFull) as caught:
        client.submit(ECHO, "x" * 100_000)
    error = caught.value
    assert error.details.keys() > REFUSAL_FIELDS
    assert (error.details["pending"], error.details["limit"], error.details["position"]) == (3, 3, 4)
    assert error.details["bottleneck"] == f"max_pending of {ANY} (3)"
    assert error.details["starts_in"]["p50"] == pytest.approx(6.0)
    assert error.details["retry_after"] == 2.0
    assert values_left(client) == []


def test_another_queue_that_would_run_it_now_is_named(client: Client) -> None:
    bound(client, 3)
    backlog(client, 3)
    join(client.scripts, "m.b", WIDE)
    with pytest.raises(QueueFull) as caught:
        client.submit(ECHO, 1)
    assert caught.value.fix == f"use {WIDE}, which would run it now"


def test_the_oldest_batch_job_is_dropped(client: Client) -> None:
    bound(client, 2, "drop-oldest-batch")
    first, second = backlog(client, 2, priority="batch")
    job = client.submit(ECHO, 1)
    with pytest.raises(QueueDropped) as caught:
        client.result(first, 10)
    assert caught.value.details["queue"] == ANY
    assert client.status(second) == client.status(job) == "running"
    with pytest.raises(QueueFull):
        client.submit(ECHO, 1, priority="batch")


def test_a_deadline_out_of_reach_is_refused_at_once(client: Client) -> None:
    backlog(client)
    with pytest.raises(DeadlineUnreachable) as caught:
        client.submit(ECHO, "x" * 100_000, deadline=5)
    details = caught.value.details
    assert details.keys() > REFUSAL_FIELDS
    assert details["position"] == 21
    assert details["starts_in"]["low"] > 5
    assert details["bottleneck"] == f"the only slot of {ANY}"
    assert details["fix"] == f"raise the deadline to {math.ceil(details['starts_in']['high'])} s"
    assert values_left(client) == []
    with pytest.raises(DeadlineUnreachable, match="queue_timeout"):
        client.submit(ECHO, 1, queue_timeout=1.5)
    with pytest.raises(DeadlineUnreachable) as caught:
        client.submit(ECHO, 1, deadline=5, priority="batch", agent="eve")
    assert str(caught.value.fix).startswith("submit it as interactive, or raise the deadline to ")
    for options in ({}, {"deadline": 60}, {"queue_timeout": 60}, {"deadline": 5, "agent": "eve"}):
        assert client.submit(ECHO, 1, **options)


def test_unmeasured_service_times_refuse_nothing(client: Client) -> None:
    join(client.scripts, "m.a", ANY, WIDE, took=None)
    backlog(client)
    assert client.submit(ECHO, 1, deadline=0.5)


def test_a_repeated_submission_is_not_refused_as_late(client: Client) -> None:
    backlog(client)
    first = client.submit(ECHO, 1, job="mine", deadline=60)
    client.redis.zadd(client.keys("waiting", ANY, "0/0|", "default"), {"mine:0": 1})
    for number in range(200):
        client.submit(ECHO, number)
    assert client.submit(ECHO, 1, job="mine", deadline=60) == first


def test_the_check_of_a_free_queue_takes_few_commands(client: Client) -> None:
    client.scripts.claim("m.a", "i", "0", "n0")  # it found no work
    compiled = client.admission.compile(json.dumps(ECHO).encode())
    check = client.admission.forecast.check
    watched: Any = SimpleNamespace(client=client.redis)

    def count_commands(**options: Any) -> int:
        return commands(watched, lambda: check("j", compiled.first_stages, JobOptions(**options), {}))

    assert count_commands() == 0
    assert 6 <= count_commands(deadline=1.0) <= 7, "and a PING where the connection was idle for long"


def test_an_exhausted_budget_refuses_though_the_seat_is_idle(client: Client) -> None:
    """This needs no measured service times: the end of the window is known."""
    once = Limit(resource="requests", window="5h", amount=1)
    join(client.scripts, "m.a", ANY, WIDE, took=None, limits=(once,))
    first = client.submit(ECHO, 1, deadline=60)
    claim = client.scripts.claim("m.a", "i", "0", "n0")
    assert isinstance(claim, Claim)
    assert claim.job == first
    client.scripts.fail(claim.lease, "stage", pause_ms=0, used=Usage(), error="{}", row="", seat="m.a")
    assert client.scripts.claim("m.a", "i", "0", "n1") == "none"
    for options in ({"deadline": 60.0}, {"queue_timeout": 3_600.0}):
        with pytest.raises(DeadlineUnreachable, match="could not start in less than") as caught:
            client.submit(ECHO, 1, **options)
        details = caught.value.details
        assert details["bottleneck"].startswith(
            "the budgets of the seats of bench:one: m.a has 0 requests left"
        )
        assert details["retry_after"] > 0
        assert details["starts_in"] is None
    assert client.submit(ECHO, 1, queue_timeout=6 * 3_600.0), "its window will have turned"
    join(client.scripts, "m.b", "bench:two")
    chain = {"root": {"op": "Stage", "id": "bench_echo", "config": {"slug": ["one", "two"]}}}
    assert client.submit(chain, 1, deadline=60), "its second choice has room"


def test_a_refusal_by_the_router_becomes_the_jobs_error(client: Client, grid_env: GridEnv) -> None:
    backlog(client)
    router = Router(app, 1)
    router.admission = client.admission
    inbox = Inbox(client.scripts, grid_env.settings)
    inbox.enqueue("late", ECHO, 1, deadline=5)
    inbox.enqueue("fine", ECHO, 1, deadline=600)
    bound(client, 21)
    for job in ("late", "fine"):
        router.admit(job)
    inbox.enqueue("full", ECHO, 1)
    router.admit("full")
    assert error(client, "late").code == "job.deadline_unreachable"
    assert client.status("fine") == "running"
    full = error(client, "full")
    assert full.code == "queue.full"
    assert full.details.keys() > REFUSAL_FIELDS


def test_a_job_past_its_deadline_before_admission_expires(client: Client, grid_env: GridEnv) -> None:
    backlog(client)
    router = Router(app, 1)
    router.admission = client.admission
    Inbox(client.scripts, grid_env.settings).enqueue("over", ECHO, 1, deadline=5)
    # No router was there in its time.
    over = now_ms(client.redis) - 1000
    client.redis.hset(client.keys("submitted", "over"), "deadline", over)
    client.redis.zadd(client.keys("deadlines"), {"over": over})
    router.admit("over")
    client.scripts.sweep()
    assert error(client, "over").code == "job.deadline"


def error(client: Client, job: str) -> GridError:
    data: Any = client.redis.lindex(client.keys("result", job), 0)
    found = End.parse(data).to_error()
    assert found is not None
    return found


def test_an_unserved_queue_is_the_bottleneck(client: Client) -> None:
    with pytest.raises(NoLiveSeat) as caught:
        client.submit({"root": {"op": "Stage", "id": "bench_echo", "config": {"slug": "two"}}}, 1)
    details = caught.value.details
    assert details["bottleneck"] == "no live seat serves bench:two"
    assert details["starts_in"] is None
    assert str(details["fix"]).startswith(f"use {WIDE}, which would run it now, or start a worker")
    assert details["position"] is None


@pytest.mark.parametrize(
    ("options", "bottleneck"),
    [
        ({"pin": "m.gone"}, "the seat m.gone is not live"),
        ({"avoid": ("m.a", "m.b")}, f"the option avoid excludes every live seat of {ANY}"),
    ],
)
def test_excluded_seats_give_no_position_and_no_other_queue(
    client: Client, options: dict[str, Any], bottleneck: str
) -> None:
    join(client.scripts, "m.b", ANY, WIDE)
    with pytest.raises(NoLiveSeat) as caught:
        client.submit(ECHO, 1, **options)
    details = caught.value.details
    assert details.keys() > REFUSAL_FIELDS
    assert (details["position"], details["starts_in"]) == (None, None), "though all slots are free"
    assert details["bottleneck"] == bottleneck
    assert "would run it now" not in details["fix"]


def test_an_unserved_later_stage_has_no_position(client: Client) -> None:
    stages = [ECHO["root"], {"op": "Stage", "id": "bench_echo", "config": {"slug": "two"}}]
    with pytest.raises(NoLiveSeat) as caught:
        client.submit({"root": {"op": "Sequential", "stages": stages}}, 1)
    details = caught.value.details
    assert (details["capability"], details["position"], details["starts_in"]) == ("bench:two", None, None)


def test_a_pinned_job_is_not_offered_another_queue(client: Client) -> None:
    bound(client, 3)
    backlog(client, 3)
    join(client.scripts, "m.b", WIDE)
    with pytest.raises(QueueFull) as caught:
        client.submit(ECHO, 1, pin="m.a")
    assert str(caught.value.fix).startswith("submit it again in ")
