"""The part of the model that gateways have: the places that the open requests of API keys hold."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant

from tests.conftest import GridEnv
from tests.model.submitting import Submitting, act, picks
from tests.unit.store.plans import HOUR

LIMITS: dict[str, tuple[int | None, int | None]] = {"k1": (None, 2), "k2": (3, None), "k3": (4, 1)}
"""Of each key: requests a minute, open at once."""

MINUTE = 60_000


class Entering(Submitting):
    """Requests of a few keys come and go; a gateway dies and comes back, and a minute passes."""

    def __init__(self, env: GridEnv, number: int) -> None:
        super().__init__(env, number)
        self.requests: dict[str, list[str]] = {key: [] for key in LIMITS}
        self.opened: dict[str, dict[str, bool]] = {key: {} for key in LIMITS}
        """Key → the requests that have a place → whether it has lapsed."""
        self.called: dict[str, set[str]] = {key: set() for key in LIMITS}
        """Key → the requests of this minute."""

    @act(
        4, key=st.sampled_from(sorted(LIMITS)), pick=picks,
        acts=st.lists(
            st.sampled_from(["enter"] * 4 + ["depart", "depart", "hold", "lapse", "minute"]),
            min_size=3, max_size=8,
        ),
    )  # fmt: skip
    def at_gateways(self, key: str, pick: random.Random, acts: list[str]) -> None:
        """What comes to gateways, one after the other."""
        for what in acts:
            self.at_a_gateway(key, pick, what)
            self.places()

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
        elif what in ("depart", "hold") and self.requests[key]:
            # Some of them ended long ago, or were never let in: a gateway may say so late, and twice.
            chosen = pick.sample(self.requests[key][-4:], k=min(2, len(self.requests[key])))
            if what == "depart":
                self.grid.scripts.depart(key, chosen)
                self.opened[key] = {one: was for one, was in self.opened[key].items() if one not in chosen}
            else:
                self.grid.scripts.extend_places(key, chosen, HOUR)
                self.opened[key] |= dict.fromkeys(self.opened[key].keys() & set(chosen), False)

    def enter(self, key: str, request: str) -> None:
        """A request comes, or its reply was lost and it comes again."""
        rpm, parallel = LIMITS[key]
        word, wait = self.grid.scripts.enter(key, request, rpm=rpm, parallel=parallel, place_ms=HOUR)
        assert word == self.word(key, request)
        assert (wait > 0) == (word != "ok")

    def word(self, key: str, request: str) -> str:
        """What a request must be told; kept in mind."""
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

    def known(self, key: str, request: str) -> bool:
        """Whether a call for this request may be repeated still."""
        return request in self.opened[key] or request in self.called[key]

    def all_depart(self) -> None:
        for key, requests in self.requests.items():
            if requests:
                self.grid.scripts.depart(key, requests)
            self.opened[key].clear()

    @invariant()
    def places(self) -> None:
        """A place comes back once, and no more are held than the limit; so with the requests of a minute."""
        now = self.grid.now()
        look = self.grid.client.pipeline(transaction=True)
        for key in LIMITS:
            look.zrange(self.grid.keys("open_requests", key), 0, -1, withscores=True)
            look.zrangebyscore(self.grid.keys("request_times", key), now - MINUTE, "+inf")
        found: list[Any] = look.execute()
        for key, opened, calls in zip(LIMITS, found[::2], found[1::2], strict=True):
            rpm, parallel = LIMITS[key]
            assert {name.decode(): until < now for name, until in opened} == self.opened[key]
            assert {name.decode() for name in calls} == self.called[key]
            assert len([until for _, until in opened if until >= now]) <= (parallel or 0)
            assert rpm is None or len(calls) <= rpm
