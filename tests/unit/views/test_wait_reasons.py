"""Reasons why a job waits, on a real server without workers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.client import Client
from gridq.errors import WaitTimeout
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.protocol import queue_names
from gridq.protocol.models import Usage
from gridq.views.wait_reasons import explain_ready_stage
from tests.conftest import GridEnv
from tests.unit.seats.live_seats import add_live_seat, echo_graph, open_client
from tests.unit.store.plans import ERROR


def waits(client: Client, **options: Any) -> str:
    job = client.submit(echo_graph(), 1, wait_for_seat=True, **options)
    return client.waits_for(job)


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with open_client(grid_env) as started:
        yield started


def test_a_queue_without_a_seat_is_named(client: Client) -> None:
    assert waits(client) == "a seat of bench:any to run bench_echo: no live seat serves it; no seat is live"


def test_a_degraded_seat_is_named(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", state="degraded", reason="the key was refused")
    assert waits(client).endswith("bench_echo: m.a is degraded: the key was refused")


def test_the_seat_that_a_job_is_pinned_to_is_named_if_it_is_not_live(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", state="ready")
    job = client.submit(echo_graph(), 1, wait_for_seat=True, pin="m.gone")
    add_live_seat(client, "m.later", "bench:any", state="ready")
    assert client.waits_for(job).endswith("the seat m.gone, which its job is pinned to, is not live")


def test_the_state_of_an_excluded_seat_is_named(client: Client) -> None:
    """The state of an unwell seat says more than its exclusion."""
    add_live_seat(client, "m.a", "bench:any", state="ready")
    job = client.submit(echo_graph(), 1)
    held = client.scripts.claim("m.a", "i-m.a", "slot", "nonce")
    assert not isinstance(held, str)
    client.scripts.fail(held.lease, "seat", pause_ms=60_000, used=Usage(), error=ERROR, row="", seat="m.a")
    prefix = "a seat of bench:any to run bench_echo: "
    failed = "m.a failed it or lacks what it needs"
    assert client.waits_for(job) == f"{prefix}{failed}, and no other seat serves it"
    ill = {"state": "rate_limited", "reason": "the limit is used up"}
    add_live_seat(client, "m.a", "bench:any", until=time.time() + 600, **ill)
    reason = client.waits_for(job)
    assert re.search(r"echo: m\.a is rate_limited for another \d+ s: the limit is used up$", reason), reason
    add_live_seat(client, "m.a", "bench:any", state="ready")
    add_live_seat(client, "m.b", "bench:any", **ill)
    [stage] = client.view(job).stages
    stage.excluded = ("m.a", "m.b")
    assert (
        explain_ready_stage(stage, client.workers()) == f"m.b is rate_limited: the limit is used up; {failed}"
    )


@pytest.mark.parametrize("left", [-30.0, 0.0, 0.2])
def test_a_time_that_is_over_is_not_named(client: Client, left: float) -> None:
    ill = {"state": "rate_limited", "reason": "the limit is used up"}
    add_live_seat(client, "m.a", "bench:any", until=time.time() + left, **ill)
    job = client.submit(echo_graph(), 1, wait_for_seat=True)
    assert client.waits_for(job).endswith("m.a is rate_limited: the limit is used up")


def test_busy_slots_are_named(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", state="ready")
    first = client.submit(echo_graph(), 1)
    client.scripts.claim("m.a", "i-m.a", "slot", "nonce")
    assert client.waits_for(first) == "bench_echo, which runs on a@m"
    assert waits(client).endswith("its only slot is busy")


def test_a_timeout_error_has_the_reason(client: Client) -> None:
    job = client.submit(echo_graph("rare"), 1, wait_for_seat=True)
    with pytest.raises(WaitTimeout, match="it waits for a seat of bench:rare") as caught:
        client.result(job, 0)
    assert caught.value.details["waits_for"].startswith("a seat of bench:rare")
    with pytest.raises(WaitTimeout, match="it waits for a seat of bench:rare"):
        list(client.stream(client.submit(echo_graph("rare"), 1, wait_for_seat=True, stream=True), 0))


def test_without_a_router_a_queued_job_says_so(client: Client) -> None:
    from gridq.submission.inbox import Inbox

    Inbox(client.scripts, client.config).enqueue("j", echo_graph(), 1)
    assert queue_names.NO_ROUTER in client.waits_for("j")
    with pytest.raises(WaitTimeout) as caught:
        client.result("j", 0)
    assert queue_names.START_ROUTER in (caught.value.fix or "")
    add_live_seat(client, "m.router-7", "gridq:pure")
    assert client.waits_for("j") == "a router to admit it"


def test_a_used_up_rate_is_named(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", concurrency=4, state="ready")
    client.redis.hset(client.keys("seat", "m.a"), "requests_per_minute", 1)
    client.submit(echo_graph(), 1)
    assert not isinstance(client.scripts.claim("m.a", "i-m.a", "one", "nonce"), str)
    reason = waits(client)
    assert re.search(r"m\.a has used its 1 requests per minute; the next is in \d+ s$", reason), reason


def test_an_agents_used_up_limit_is_named(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", state="ready")
    client.redis.sadd(client.keys("parked", "ann"), "bench:any 0/0|")
    client.redis.expire(client.keys("parked", "ann"), 60)
    job = client.submit(echo_graph(), 1, wait_for_seat=True, agent="ann")
    assert client.waits_for(job) == "a new budget window: the agent 'ann' or its team has used up a limit"
    put_in_force(client.scripts, parse('[agents.ann]\nbudgets = [{tokens = 5, per = "day"}]', "q.toml"), "t")
    client.redis.hset(client.keys("meters"), "a:ann", "tokens/day/5/7/0/ jobs/day/5/7/0/")
    assert client.waits_for(job) == ("a new budget window: agent ann has used 7 of 5 (tokens a day)")


def test_a_shared_budget_is_named_once(client: Client) -> None:
    put_in_force(client.scripts, parse("[grid]\nbudgets = [{requests = 0, per = '5h'}]", "q.toml"), "a test")
    for seat in ("m.a", "m.b"):
        add_live_seat(client, seat, "bench:any", state="ready")
    reason = waits(client)
    assert reason.endswith(
        ": a budget has too little left: the whole grid has 0 requests left of 0 requests in 5h"
    )


@pytest.mark.parametrize(("share", "words"), [(0.4, ", 40 %"), (None, "")])
def test_a_running_stage_whose_model_loads_says_so(client: Client, share: float | None, words: str) -> None:
    loading = {"loading": {"bench:any": {"model": "qwen3-8b", "share": share}}}
    add_live_seat(client, "m.a", "bench:any", state="ready", details=loading)
    job = client.submit(echo_graph(), 1)
    assert not isinstance(client.scripts.claim("m.a", "i-m.a", "slot", "nonce"), str)
    assert client.waits_for(job) == f"bench_echo, which runs on a@m: loading qwen3-8b on a@m{words}"
    other = {"loading": {"bench:other": {"model": "qwen3-8b", "share": share}}}
    add_live_seat(client, "m.a", "bench:any", state="ready", details=other)
    assert client.waits_for(job) == "bench_echo, which runs on a@m", "its own model is loaded"


def test_a_stage_that_waits_for_the_end_of_another_models_run_says_so(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", "bench:other", concurrency=2)
    client.scripts.renew("m.a", "i-m.a", [], ["bench:other"], pass_over={"bench:any": 20.0})
    client.submit(echo_graph("other"), 1)
    assert not isinstance(client.scripts.claim("m.a", "i-m.a", "slot", "nonce"), str)
    job = client.submit(echo_graph(), 1)
    assert client.scripts.claim("m.a", "i-m.a", "slot2", "nonce2") == "none"
    assert client.waits_for(job).endswith(": m.a uses another model, whose work goes first for at most 20 s")


def test_a_stage_whose_model_is_downloaded_says_so(client: Client) -> None:
    details = {"downloading": {"bench:any": {"model": "qwen3-8b", "share": 0.4}}}
    add_live_seat(client, "m.a", "bench:any", state="ready", details=details)
    job = client.submit(echo_graph(), 1)
    assert client.waits_for(job) == (
        "a seat of bench:any to run bench_echo: downloading qwen3-8b to a@m, 40 %"
    )
