"""The bench profile: each implementation does what its name says."""

from __future__ import annotations

import threading
import time

import pytest

from gridq.errors import ChildDied, JobCancelled, SeatUnavailable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall, Usage
from tests.fakes.bench_profile import BenchProfile


def call(name: str) -> StageCall:
    return StageCall(id="s1", name="s", path="$.body", implementation=f"bench:{name}")


def test_seats_come_from_one_table_or_several():
    assert [(seat.name, seat.concurrency) for seat in BenchProfile().probe({}).found] == [("bench", 2)]
    tables = [{"name": "a", "concurrency": 3}, {"name": "b", "slugs": ["fast"]}]
    assert [(seat.name, seat.concurrency) for seat in BenchProfile().probe(tables).found] == [
        ("a", 3),
        ("b", 2),
    ]


def test_echo_returns_its_input():
    assert BenchProfile().run(call("echo"), {"a": [1, None]}, StageContext()) == {"a": [1, None]}


def test_fail_is_the_stages_fault():
    with pytest.raises(StageError, match="on purpose") as caught:
        BenchProfile().run(call("fail"), {"message": "on purpose"}, StageContext())
    assert caught.value.path == "$.body"


def test_seat_fail_counts_by_key():
    profile = BenchProfile()
    for key in ("one", "two"):
        request = {"times": 2, "key": f"test_seat_fail-{key}"}
        for _ in range(2):
            with pytest.raises(SeatUnavailable):
                profile.run(call("seat_fail"), request, StageContext())
        assert BenchProfile().run(call("seat_fail"), request, StageContext()) == request


def test_tokens_are_emitted_and_joined():
    pieces: list[object] = []
    context = StageContext(emit=pieces.append)
    assert BenchProfile().run(call("tokens"), {"n": 3}, context) == "token0 token1 token2 "
    assert pieces == ["token0 ", "token1 ", "token2 "]
    assert context.usage == Usage(tokens_out=3)


def test_spend_reports_what_it_is_told():
    context = StageContext()
    BenchProfile().run(call("spend"), {"micro_dollars": 70, "tokens_in": 5}, context)
    assert context.usage == Usage(micro_dollars=70, tokens_in=5)


def test_sleep_ends_when_cancelled():
    context = StageContext()
    threading.Timer(0.05, context.cancel).start()
    with pytest.raises(JobCancelled):
        BenchProfile().run(call("sleep"), {"ms": 60_000}, context)


def test_sleep_ends_at_its_deadline():
    with pytest.raises(StageTimeout):
        BenchProfile().run(call("sleep"), {"ms": 60_000}, StageContext(deadline=time.monotonic() + 0.05))


def test_die_kills_a_real_child():
    with pytest.raises(ChildDied):
        BenchProfile().run(call("die"), None, StageContext())
