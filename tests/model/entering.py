"""The gateways' part of the model: the limits of API keys on open requests and on requests a minute."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant

from tests.conftest import GridEnv
from tests.model.submitting import Submitting, act, picks
from tests.unit.store.plans import HOUR

LIMITS: dict[str, tuple[int | None, int | None]] = {"k1": (None, 2), "k2": (3, None), "k3": (4, 1)}
"""By key: the limit on requests a minute, and on open requests."""

MINUTE = 60_000


class Entering(Submitting):
    """Requests of a few keys start and end, a gateway dies and returns, and a minute passes."""

    def __init__(self, env: GridEnv, number: int) -> None:
        super().__init__(env, number)
        self.requests: dict[str, list[str]] = {key: [] for key in LIMITS}
        self.opened: dict[str, dict[str, bool]] = {key: {} for key in LIMITS}
        """By key and open request: whether its slot has lapsed."""
        self.called: dict[str, set[str]] = {key: set() for key in LIMITS}
        """By key: the requests of this minute."""

    @act(
        4, key=st.sampled_from(sorted(LIMITS)), pick=picks,
        acts=st.lists(
            st.sampled_from(["enter"] * 4 + ["depart", "depart", "extend", "lapse", "minute"]),
            min_size=3, max_size=8,
        ),
    )  # fmt: skip
    def at_gateways(self, key: str, pick: random.Random, acts: list[str]) -> None:
        """Events at gateways, one after another."""
        for what in acts:
            self.at_a_gateway(key, pick, what)
            self.check_slots()

    def at_a_gateway(self, key: str, pick: random.Random, what: str) -> None:
        if what == "enter":
            self.requests[key].append(f"r{next(self.numbers)}")
            self.enter(key, self.requests[key][-1])
        elif what == "minute":
            for request in self.called[key]:
                self.grid.client.zincrby(self.grid.keys("request_times", key), -MINUTE - 1, request)
            self.called[key].clear()
        elif what == "lapse" and self.opened[key]:
            request = pick.choice(sorted(self.opened[key]))
            self.grid.age("open_requests:" + key, request)
            self.opened[key][request] = True
        elif what in ("depart", "extend") and self.requests[key]:
            # Some ended long ago or were never admitted: a gateway may report late, and twice.
            chosen = pick.sample(self.requests[key][-4:], k=min(2, len(self.requests[key])))
            if what == "depart":
                self.grid.scripts.release_slots(key, chosen)
                self.opened[key] = {one: was for one, was in self.opened[key].items() if one not in chosen}
            else:
                self.grid.scripts.extend_slots(key, chosen, HOUR)
                self.opened[key] |= dict.fromkeys(self.opened[key].keys() & set(chosen), False)

    def enter(self, key: str, request: str) -> None:
        """Start a request, or repeat one whose reply was lost."""
        rpm, parallel = LIMITS[key]
        word, wait = self.grid.scripts.take_slot(key, request, rpm=rpm, parallel=parallel, slot_ms=HOUR)
        assert word == self.expect_reply(key, request)
        assert (wait > 0) == (word != "ok")

    def expect_reply(self, key: str, request: str) -> str:
        """Return the expected reply to a request, and record it in the model."""
        (rpm, parallel), opened, called = LIMITS[key], self.opened[key], self.called[key]
        if request in opened:
            return "ok"
        if parallel is not None:
            opened = self.opened[key] = {one: False for one, lapsed in opened.items() if not lapsed}
            if len(opened) >= parallel:
                return "parallel"
        if rpm is not None and request not in called:
            if len(called) >= rpm:
                return "rate"
            called.add(request)
        if parallel is not None:
            opened[request] = False
        return "ok"

    def is_repeatable(self, key: str, request: str) -> bool:
        """Return whether a call for this request may still be repeated."""
        return request in self.opened[key] or request in self.called[key]

    def all_depart(self) -> None:
        for key, requests in self.requests.items():
            if requests:
                self.grid.scripts.release_slots(key, requests)
            self.opened[key].clear()

    @invariant()
    def check_slots(self) -> None:
        """The server has the model's open requests and requests of this minute, and neither exceeds its
        limit.
        """
        now = self.grid.now()
        pipe = self.grid.client.pipeline(transaction=True)
        for key in LIMITS:
            pipe.zrange(self.grid.keys("open_requests", key), 0, -1, withscores=True)
            pipe.zrangebyscore(self.grid.keys("request_times", key), now - MINUTE, "+inf")
        found: list[Any] = pipe.execute()
        for key, opened, calls in zip(LIMITS, found[::2], found[1::2], strict=True):
            rpm, parallel = LIMITS[key]
            assert {name.decode(): until < now for name, until in opened} == self.opened[key]
            assert {name.decode() for name in calls} == self.called[key]
            assert len([until for _, until in opened if until >= now]) <= (parallel or 0)
            assert rpm is None or len(calls) <= rpm
