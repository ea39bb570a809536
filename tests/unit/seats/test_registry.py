"""Live seats as the registry reads them, on a real server without workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gridq.client import Client
from gridq.protocol.models import ModelCooldown
from gridq.seats.registry import (
    LiveSeat,
    explain_no_seat,
    find_seconds_back,
    publish_stages,
    read_published_stages,
    suggest_seat,
)
from tests.conftest import GridEnv
from tests.unit.seats.live_seats import add_live_seat, open_client

FUTURE = 4_102_444_800_000
"""An instant in ms that has yet to come."""


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with open_client(grid_env) as started:
        yield started


def test_a_live_seat_with_a_silent_worker_is_listed_as_stale(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", concurrency=3, budget=500)
    add_live_seat(client, "m.router-7", "gridq:pure")
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
    ("served", "message"),
    [
        ([], "no seat is live"),
        (["llm:opus-4-6"], "the closest is llm:opus-4-6, served by m.a"),
        (["llm:any"], "the live seats of llm serve llm:any"),
        (["llm:any", "llm:any%2Fembeddings"], "the live seats of llm serve llm:any"),
        (["bench:any"], "no live seat is of kind llm; the live seats serve bench:any"),
    ],
)
def test_the_error_suggests_only_queues_that_are_close(
    client: Client, served: list[str], message: str
) -> None:
    if served:
        add_live_seat(client, "m.a", *served, state="ready")
    assert explain_no_seat("llm:opus-4-7", list(client.workers())) == message


def test_the_tightest_limits_of_a_seat_are_shown(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", concurrency=4, budget=500, state="ready")
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


def seat(name: str, queue: str, state: str, until: float | None = None, **more: Any) -> LiveSeat:
    return LiveSeat(
        seat=name, machine="m", worker=name, incarnation="i", kind="bench", concurrency=1, queues=[queue],
        state=state, until=until, **more,
    )  # fmt: skip


IN_COOLDOWN = ModelCooldown(
    model="y", queues=["bench:y"], state="degraded", reason="", since=0.0, until=150.0
)


def test_the_first_seat_that_is_back_is_waited_for() -> None:
    live = [
        seat("m.a", "bench:x", "key_refused", 160.0),
        seat("m.b", "bench:x", "rate_limited", 130.0),
        seat("m.c", "bench:x", "paused"),
        seat("m.d", "bench:z", "ready", models_in_cooldown=[IN_COOLDOWN]),
    ]
    assert find_seconds_back(["bench:x"], live, 100.0) == 30.0
    assert find_seconds_back(["bench:y"], live, 100.0) == 50.0
    assert find_seconds_back(["bench:x", "bench:y"], live, 140.0) == 1.0, "it is about to be tried"
    assert find_seconds_back(["bench:x"], live[2:], 100.0) is None
    assert find_seconds_back(["bench:z"], live, 100.0) is None


def test_a_seat_that_its_owner_must_repair_is_not_told_to_be_started() -> None:
    for queue, live in (
        ("bench:x", seat("m.a", "bench:x", "key_refused")),
        ("bench:y", seat("m.a", "bench:x", "ready", models_in_cooldown=[IN_COOLDOWN])),
    ):
        assert "gridq seat retry" in suggest_seat([queue], [live])
    for queue, live in (
        ("bench:x", seat("m.a", "bench:x", "paused")),
        ("bench:x", seat("m.a", "bench:x", "failing")),
        ("bench:z", seat("m.a", "bench:x", "degraded")),
    ):
        assert "start a worker" in suggest_seat([queue], [live])


def test_a_model_that_fits_no_device_says_its_need_and_the_best_device(client: Client) -> None:
    large = [{"name": "big", "queues": ["llm:big"], "need_mb": 24 * 1024}]
    for seat, usable, free in (("a.gpu0", 12_288, 8_192), ("b.gpu0", 23_552, 12_390), ("c.cpu", 1_024, 9)):
        memory = {"usable_mb": usable, "free_mb": free, "memory_mb": 24 * 1024}
        add_live_seat(client, seat, "llm:other", state="ready", capability={**memory, "too_large": large})
    reason = explain_no_seat("llm:big", list(client.workers()))
    assert reason == "big needs 24.0 GB; best is gpu0@b with 12.1 free of 24.0 GB"
    assert "big" not in explain_no_seat("llm:bigger", list(client.workers()))


def test_a_damaged_seat_hides_no_other(client: Client) -> None:
    for name in ("m.a", "m.odd", "m.text"):
        add_live_seat(client, name, "bench:any", concurrency=4, state="ready")
    client.redis.hset(client.keys("seat", "m.odd"), "concurrency", "many")
    client.redis.delete(client.keys("seat", "m.text"))
    client.redis.set(client.keys("seat", "m.text"), "text", px=60_000)
    assert [seat.seat for seat in client.workers()] == ["m.a"]


def test_damaged_stages_of_one_machine_hide_no_others(client: Client) -> None:
    for machine in ("m", "n", "o"):
        add_live_seat(client, f"{machine}.a", "bench:any", state="ready")
    publish_stages(client.redis, client.keys, "m", [{"name": "mine"}], heartbeat=10)
    for machine, text in (("n", "no JSON"), ("o", "7")):
        client.redis.set(client.keys("stages", machine), text, px=60_000)
    assert read_published_stages(client.redis, client.keys) == [{"name": "mine"}]
