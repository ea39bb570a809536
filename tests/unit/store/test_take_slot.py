"""take_slot.lua: an API key's requests a minute and at once, counted for all gateways together."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.store.scripts import Scripts
from tests.conftest import GridEnv

pytestmark = pytest.mark.usefixtures("key_hygiene")

HOLD = 30_000


@pytest.fixture
def scripts(grid_env: GridEnv) -> Scripts:
    return Scripts(grid_env.client, grid_env.settings)


def enter(scripts: Scripts, request: str, rpm: int | None = None, parallel: int | None = None) -> str:
    return scripts.take_slot("k", request, rpm=rpm, parallel=parallel, slot_ms=HOLD)[0]


def test_requests_per_minute_are_limited(scripts: Scripts) -> None:
    assert [enter(scripts, f"r{n}", rpm=3) for n in range(5)] == ["ok", "ok", "ok", "rate", "rate"]
    word, wait = scripts.take_slot("k", "r9", rpm=3, parallel=None, slot_ms=HOLD)
    assert word == "rate"
    assert 50_000 < wait <= 60_001
    assert scripts.client.zcard(scripts.keys("request_times", "k")) == 3, "a refused request is not counted"
    assert scripts.take_slot("other", "r1", rpm=3, parallel=None, slot_ms=HOLD)[0] == "ok"


def test_a_repeated_call_is_one_request(scripts: Scripts) -> None:
    for _ in range(3):
        assert enter(scripts, "r1", rpm=2, parallel=1) == "ok"
    assert enter(scripts, "r2", rpm=2, parallel=1) == "parallel"
    for _ in range(3):
        assert enter(scripts, "r3", rpm=2) == "ok"
    assert scripts.client.zcard(scripts.keys("request_times", "k")) == 2


def test_slots_are_extended_unless_they_were_released(scripts: Scripts) -> None:
    opened = scripts.keys("open_requests", "k")
    for request in ("r1", "r2", "r3"):
        assert enter(scripts, request, parallel=3) == "ok"
    before: Any = scripts.client.zmscore(opened, ["r1", "r2"])
    scripts.release_slots("k", ["r3"])
    scripts.extend_slots("k", ["r1", "r2", "r3"], 2 * HOLD)
    found: Any = scripts.client.zmscore(opened, ["r1", "r2", "r3"])
    *after, gone = found
    assert gone is None
    assert all(now - then >= HOLD for now, then in zip(after, before, strict=True))
    assert scripts.client.pttl(opened) > HOLD
