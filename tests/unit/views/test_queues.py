"""Queues, live seats, and what a job waits for, on a real server without anyone who works."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.app import app
from gridq.client import Client
from gridq.errors import WaitTimeout
from gridq.limits.enforcement import put_in_force
from gridq.limits.quotas_file import parse
from gridq.messaging import wake_ups
from gridq.protocol.models import Advertisement, Limit, Usage
from gridq.seats import registry
from gridq.seats.registry import explain_no_seat
from gridq.views.wait_reasons import explain_ready_stage
from tests.builders import parallel, stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.unit.store.plans import ERROR

FUTURE = 4_102_444_800_000
"""An instant in ms that has yet to come."""


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,)})
    with Client(config=config) as started:
        wake_ups.write_templates(app, started.redis, started.keys)
        yield started


def live(
    client: Client, seat: str, *queues: str, concurrency: int = 1, budget: int | None = None, **said: Any
) -> None:
    """Make a seat live; where something is said of it, it advertises."""
    limits = [] if budget is None else [Limit(resource="money", window="month", amount=budget)]
    kwargs: dict[str, Any] = {
        "concurrency": concurrency,
        "limits": limits,
        "queues": queues,
        "record_ttl_ms": 60_000,
    }
    client.scripts.register(seat, f"i-{seat}", host=seat, **kwargs)
    machine, _, name = seat.partition(".")
    if said:
        ad = Advertisement(
            seat=seat, machine=machine, worker=f"{name}@{machine}", incarnation=f"i-{seat}", kind="bench",
            concurrency=concurrency, queues=list(queues), **said,
        )  # fmt: skip
        registry.advertise(client.redis, client.keys, ad, 10)


def echo(slug: str = "any") -> dict[str, Any]:
    return {"root": stage("bench_echo", slug=slug)}


def waits(client: Client, **options: Any) -> str:
    job = client.submit(echo(), 1, wait_for_seat=True, **options)
    return client.waits_for(job)


def test_a_queue_counts_what_waits_runs_and_rings(client: Client) -> None:
    live(client, "m.a", "bench:any", concurrency=2, state="ready")
    both = {"root": parallel(a=stage("bench_echo"), b=stage("bench_echo"))}
    client.submit(both, 1, wait_for_seat=True)
    client.submit(echo(), 1, priority="batch")
    client.submit(echo("rare"), 1, wait_for_seat=True)
    client.scripts.claim("m.a", "i-m.a", "slot", "nonce")
    found = {view.queue: view for view in client.queues()}
    shared, rare = found["bench:any"], found["bench:rare"]
    assert shared.pending == {"interactive": 1, "batch": 1}
    assert (shared.running, shared.concurrency, shared.seats) == (1, 2, ["m.a"])
    assert shared.oldest_ms is not None
    assert (rare.pending["interactive"], rare.concurrency, rare.seats, rare.wake_ups) == (1, 0, [], 1)
    assert client.queues()[0].queue == "gridq:router"
    [seat] = client.workers()
    assert (seat.busy, seat.concurrency, seat.free) == (1, 2, 1)
    assert seat.wake_ups >= 1


def test_a_seat_whose_worker_is_silent_is_live_all_the_same(client: Client) -> None:
    live(client, "m.a", "bench:any", concurrency=3, budget=500)
    live(client, "m.router-7", "gridq:pure")
    [seat] = client.workers()
    assert (seat.seat, seat.stale, seat.concurrency, seat.budget, seat.budget_left) == (
        "m.a",
        True,
        3,
        500,
        500,
    )
    assert [(each.seat, each.kind, each.stale) for each in client.seats()][1] == (
        "m.router-7",
        "router",
        False,
    )


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ([], "no seat is live"),
        (["llm:opus-4-6"], "the closest is llm:opus-4-6, served by m.a"),
        (["llm:any"], "the live seats of llm serve llm:any"),
        (["bench:any"], "no live seat is of kind llm; the live seats serve bench:any"),
    ],
)
def test_only_what_is_close_is_called_close(client: Client, served: list[str], says: str) -> None:
    if served:
        live(client, "m.a", *served, state="ready")
    assert explain_no_seat("llm:opus-4-7", list(client.workers())) == says


def test_nobody_serves_it(client: Client) -> None:
    assert waits(client) == "a seat of bench:any to run bench_echo: no live seat serves it; no seat is live"


def test_the_only_seat_is_not_well(client: Client) -> None:
    live(client, "m.a", "bench:any", state="degraded", reason="the key was refused")
    assert waits(client).endswith("bench_echo: m.a is degraded: the key was refused")


def test_the_only_seat_fell_ill_of_the_stage(client: Client) -> None:
    """Its state says more than that it is left out; of a seat that is well there is no more to say."""
    live(client, "m.a", "bench:any", state="ready")
    job = client.submit(echo(), 1)
    held = client.scripts.claim("m.a", "i-m.a", "slot", "nonce")
    assert not isinstance(held, str)
    client.scripts.fail(held.lease, "seat", pause_ms=60_000, used=Usage(), error=ERROR, row="", seat="m.a")
    told = "a seat of bench:any to run bench_echo: "
    failed = "m.a failed it or lacks what it needs"
    assert client.waits_for(job) == f"{told}{failed}, and no other seat serves it"
    ill = {"state": "rate_limited", "reason": "the limit is used up"}
    live(client, "m.a", "bench:any", until=time.time() + 600, **ill)
    said = client.waits_for(job)
    assert re.search(r"echo: m\.a is rate_limited for another \d+ s: the limit is used up$", said), said
    live(client, "m.a", "bench:any", state="ready")
    live(client, "m.b", "bench:any", **ill)
    [stage] = client.view(job).stages
    stage.excluded = ("m.a", "m.b")
    assert (
        explain_ready_stage(stage, client.workers()) == f"m.b is rate_limited: the limit is used up; {failed}"
    )


def test_every_slot_is_busy(client: Client) -> None:
    live(client, "m.a", "bench:any", state="ready")
    first = client.submit(echo(), 1)
    client.scripts.claim("m.a", "i-m.a", "slot", "nonce")
    assert client.waits_for(first) == "bench_echo, which runs on a@m"
    assert waits(client).endswith("its only slot is busy")


def test_a_time_out_says_what_it_waits_for(client: Client) -> None:
    job = client.submit(echo("rare"), 1, wait_for_seat=True)
    with pytest.raises(WaitTimeout, match="it waits for a seat of bench:rare") as caught:
        client.result(job, 0)
    assert caught.value.details["waits_for"].startswith("a seat of bench:rare")
    with pytest.raises(WaitTimeout, match="it waits for a seat of bench:rare"):
        list(client.stream(job, 0))


def test_without_a_router_a_queued_job_says_so(client: Client) -> None:
    from gridq.submission.inbox import Inbox

    Inbox(client.scripts, client.config).enqueue("j", echo(), 1)
    assert client.waits_for("j").startswith("a router to admit it: none is live")
    live(client, "m.router-7", "gridq:pure")
    assert client.waits_for("j") == "a router to admit it"


def test_the_limits_that_bind_are_those_with_less_left(client: Client) -> None:
    live(client, "m.a", "bench:any", concurrency=4, budget=500, state="ready")
    record = {
        "grid": f"money/day/90/95/0/{FUTURE} tokens/5h/7/0/0/",
        "requests_per_minute": 1,
        "quota_requests_per_minute": 9,
    }
    client.redis.hset(client.keys("seat", "m.a"), mapping=record)
    [seat] = client.workers()
    assert (seat.budget, seat.budget_left, seat.budget_until) == (90, -5, FUTURE / 1000)
    assert [(m.account, m.name, m.remaining) for m in seat.meters] == [
        ("own", "money/month", 500),
        ("grid", "money/day", -5),
        ("grid", "tokens/5h", 7),
    ]
    assert (seat.requests_per_minute, seat.rate_until) == (1, None)
    client.redis.lpush(client.keys("claim_times", "m.a"), 1)
    assert client.workers()[0].rate_until is None  # long ago
    client.redis.expire(client.keys("claim_times", "m.a"), 60)


def test_a_seat_has_made_its_requests_of_the_minute(client: Client) -> None:
    live(client, "m.a", "bench:any", concurrency=4, state="ready")
    client.redis.hset(client.keys("seat", "m.a"), "requests_per_minute", 1)
    client.submit(echo(), 1)
    assert not isinstance(client.scripts.claim("m.a", "i-m.a", "one", "nonce"), str)
    said = waits(client)
    assert re.search(r"m\.a has used its 1 requests per minute; the next is in \d+ s$", said), said


def test_an_agent_is_over_its_money(client: Client) -> None:
    live(client, "m.a", "bench:any", state="ready")
    client.redis.sadd(client.keys("parked", "ann"), "bench:any 0/0|")
    client.redis.expire(client.keys("parked", "ann"), 60)
    job = client.submit(echo(), 1, wait_for_seat=True, agent="ann")
    assert client.waits_for(job) == "a new budget window: the agent 'ann' or its team has used up a limit"
    put_in_force(client.scripts, parse('[agents.ann]\nbudgets = [{tokens = 5, per = "day"}]', "q.toml"), "t")
    client.redis.hset(client.keys("meters"), "a:ann", "tokens/day/5/7/0/ jobs/day/5/7/0/")
    assert client.waits_for(job) == ("a new budget window: agent ann has used 7 of 5 (tokens a day)")


def test_what_seats_share_is_told_once(client: Client) -> None:
    put_in_force(client.scripts, parse("[grid]\nbudgets = [{requests = 0, per = '5h'}]", "q.toml"), "a test")
    for seat in ("m.a", "m.b"):
        live(client, seat, "bench:any", state="ready")
    told = waits(client)
    assert told.endswith(
        ": a budget has too little left: the whole grid has 0 requests left of 0 requests in 5h"
    )
