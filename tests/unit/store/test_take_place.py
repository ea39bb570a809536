"""take_place.lua: an API key's requests a minute and at once, counted for all gateways together."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("key_hygiene")

HOLD = 30_000


@pytest.fixture
def scripts(grid_env: GridEnv) -> Scripts:
    return Scripts(grid_env.client, grid_env.settings)


def enter(scripts: Scripts, request: str, rpm: int | None = None, parallel: int | None = None) -> str:
    return scripts.take_place("k", request, rpm=rpm, parallel=parallel, place_ms=HOLD)[0]


def test_so_many_a_minute(scripts: Scripts) -> None:
    assert [enter(scripts, f"r{n}", rpm=3) for n in range(5)] == ["ok", "ok", "ok", "rate", "rate"]
    word, wait = scripts.take_place("k", "r9", rpm=3, parallel=None, place_ms=HOLD)
    assert word == "rate"
    assert 50_000 < wait <= 60_001
    assert scripts.client.zcard(scripts.keys("request_times", "k")) == 3, "who is refused counts for nothing"
    assert scripts.take_place("other", "r1", rpm=3, parallel=None, place_ms=HOLD)[0] == "ok"


def test_what_is_a_minute_old_counts_no_more(scripts: Scripts) -> None:
    assert enter(scripts, "r1", rpm=1) == "ok"
    assert enter(scripts, "r2", rpm=1) == "rate"
    scripts.client.zincrby(scripts.keys("request_times", "k"), -60_001, "r1")
    assert enter(scripts, "r2", rpm=1) == "ok"
    assert scripts.client.zrange(scripts.keys("request_times", "k"), 0, -1) == [b"r2"]


def test_so_many_at_once(scripts: Scripts) -> None:
    assert [enter(scripts, f"r{n}", parallel=2) for n in range(3)] == ["ok", "ok", "parallel"]
    scripts.release_places("k", ["r0"])
    assert enter(scripts, "r3", parallel=2) == "ok"
    assert enter(scripts, "r4", parallel=2) == "parallel"


def test_a_repeated_call_is_one_request(scripts: Scripts) -> None:
    for _ in range(3):
        assert enter(scripts, "r1", rpm=2, parallel=1) == "ok"
    assert scripts.client.zcard(scripts.keys("request_times", "k")) == 1
    assert enter(scripts, "r2", rpm=2, parallel=1) == "parallel"
    for _ in range(3):
        assert enter(scripts, "r3", rpm=2) == "ok"
    assert scripts.client.zcard(scripts.keys("request_times", "k")) == 2


def test_one_refused_at_once_has_not_used_up_its_minute(scripts: Scripts) -> None:
    assert enter(scripts, "r1", rpm=2, parallel=1) == "ok"
    assert [enter(scripts, f"x{n}", rpm=2, parallel=1) for n in range(5)] == ["parallel"] * 5
    scripts.release_places("k", ["r1"])
    assert enter(scripts, "r2", rpm=2, parallel=1) == "ok"
    scripts.release_places("k", ["r2"])
    assert enter(scripts, "r3", rpm=2, parallel=1) == "rate"
    assert scripts.client.exists(scripts.keys("open_requests", "k")) == 0


def test_the_place_of_a_gateway_that_died_lapses(scripts: Scripts) -> None:
    assert scripts.take_place("k", "dead", rpm=None, parallel=1, place_ms=50)[0] == "ok"
    wait_for(lambda: enter(scripts, "r2", parallel=1) == "ok")
    scripts.extend_places("k", ["dead"], HOLD)
    assert scripts.client.zrange(scripts.keys("open_requests", "k"), 0, -1) == [b"r2"]


def test_places_are_held_anew_but_not_those_that_were_given_back(scripts: Scripts) -> None:
    opened = scripts.keys("open_requests", "k")
    for request in ("r1", "r2", "r3"):
        assert enter(scripts, request, parallel=3) == "ok"
    before: Any = scripts.client.zmscore(opened, ["r1", "r2"])
    scripts.release_places("k", ["r3"])
    scripts.extend_places("k", ["r1", "r2", "r3"], 2 * HOLD)
    found: Any = scripts.client.zmscore(opened, ["r1", "r2", "r3"])
    *after, gone = found
    assert gone is None
    assert all(now - then >= HOLD for now, then in zip(after, before, strict=True))
    assert scripts.client.pttl(opened) > HOLD
