"""The scripts called in any order, late and again: what must always hold, holds after each call."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gridq import bells
from gridq.app import app
from gridq.graph.plan import Arms, Plan, Scope, Step
from gridq.queues import PURE
from gridq.store.scripts import Claim
from tests import machines
from tests.conftest import GridEnv
from tests.hygiene import keys_without_ttl
from tests.invariants import broken
from tests.unit.store.plans import Grid, step

ONE, TWO = "bench:one", "bench:two"
SEATS = {"m.a": (2, 1_000_000, (ONE, TWO)), "m.b": (1, 50_000, (ONE,)), "m.c": (1, None, (TWO, PURE))}
"""Lanes, budget and queues."""

_leaf = st.tuples(
    st.just("stage"), st.sampled_from([ONE, ONE, TWO, PURE]), st.sampled_from([0, 0, 900, 7_000])
)


def _trees(children: st.SearchStrategy[tuple[object, ...]]) -> st.SearchStrategy[tuple[object, ...]]:
    some = st.lists(children, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("seq"), some),
        st.tuples(st.just("par"), some),
        st.tuples(st.just("if"), st.none() | children, st.none() | children),
        st.tuples(st.just("retry"), st.integers(1, 3), st.sampled_from([0, 1000]), children),
    )


_retried = st.tuples(
    st.just("retry"),
    st.integers(2, 3),
    st.sampled_from([0, 1000]),
    _trees(st.recursive(_leaf, _trees, max_leaves=4)),
)
trees = st.one_of(_retried, st.recursive(_leaf, _trees, max_leaves=6))


class Builder:
    """A plan with the promises that the compiler makes: see `gridq.graph.compile`."""

    def __init__(self, tree: tuple[object, ...]) -> None:
        self.steps: list[Step] = []
        self.scopes: list[tuple[int | None, int, int]] = []
        end = self.node(tree, frozenset(), None, None)
        self.add(end, None, None, PURE, 0)

    def add(
        self, done: frozenset[int], guard: tuple[int, bool] | None, scope: int | None, queue: str, cost: int
    ) -> int:
        made = step(*sorted(done), queue=queue, cost=cost, scope=scope)
        self.steps.append(dataclasses.replace(made, guard=guard))
        return len(self.steps) - 1

    def node(
        self,
        tree: tuple[object, ...],
        done: frozenset[int],
        guard: tuple[int, bool] | None,
        scope: int | None,
    ) -> frozenset[int]:
        match tree:
            case ("stage", str(queue), int(cost)):
                return frozenset((self.add(done, guard, scope, queue, cost),))
            case ("seq", list(parts)):
                for part in parts:
                    done = self.node(part, done, guard, scope)
                return done
            case ("par", list(parts)):
                return frozenset().union(*(self.node(part, done, guard, scope) for part in parts))
            case ("if", yes, no):
                gate = self.add(done, guard, scope, ONE, 0)
                start = frozenset((gate,))
                ends = [
                    self.node(arm, start, (gate, taken), scope) if isinstance(arm, tuple) else start
                    for taken, arm in ((True, yes), (False, no))
                ]
                return ends[0] | ends[1]
            case ("retry", int(most), int(delay), tuple(child)):
                number = len(self.scopes)
                self.scopes.append((scope, most, delay))
                end = self.node(child, done, guard, number)
                return end if len(end) == 1 else frozenset((self.add(end, guard, number, PURE, 0),))
        raise AssertionError(tree)

    def plan(self) -> Plan:
        arms = []
        for gate in sorted({made.guard[0] for made in self.steps if made.guard}):
            inside = {
                taken: tuple(n for n in range(len(self.steps)) if self._in_arm(n, gate, taken))
                for taken in (True, False)
            }
            arms.append(Arms(gate, inside[True], inside[False]))
        scopes = []
        for number, (parent, most, delay) in enumerate(self.scopes):
            members = [n for n, made in enumerate(self.steps) if self._in_scope(made.scope, number)]
            counted = tuple((n, sum(before in members for before in self.steps[n].after)) for n in members)
            scopes.append(Scope("root", parent, most, delay, counted))
        return Plan(tuple(self.steps), len(self.steps) - 1, tuple(arms), tuple(scopes))

    def _in_arm(self, number: int, gate: int, taken: bool) -> bool:
        guard = self.steps[number].guard
        while guard is not None:
            if guard == (gate, taken):
                return True
            guard = self.steps[guard[0]].guard
        return False

    def _in_scope(self, scope: int | None, wanted: int) -> bool:
        while scope is not None:
            if scope == wanted:
                return True
            scope = self.scopes[scope][0]
        return False


class Protocol(RuleBasedStateMachine):
    """One grid, three seats, a few jobs; any lease ever given may be reported at any time and again."""

    def __init__(self, env: GridEnv, number: int) -> None:
        super().__init__()
        config = env.settings.model_copy(update={"prefix": f"{env.prefix}{number}."})
        self.grid = Grid(env.client, config)
        bells.declare(app, self.grid.client, self.grid.keys)
        self.numbers = itertools.count(1)
        self.jobs: list[str] = []
        self.queued: list[str] = []
        self.leases: list[str] = []
        self.used: dict[str, int] = {}
        self.reported: set[str] = set()
        self.recorded: Counter[str] = Counter()
        self.incarnations = dict.fromkeys(SEATS, "i0")

    # -- what is done ----------------------------------------------------------------------------------------

    @initialize(tree=trees)
    def start(self, tree: tuple[object, ...]) -> None:
        for seat in SEATS:
            self.register(seat, same=True, host="h1")
        self.admit(tree, "ann", prio=0, celery=True)

    @rule(used=st.integers(0, 3_000))
    def fill(self, used: int) -> None:
        """Every lane takes what it can."""
        for seat, (lanes, _, _) in SEATS.items():
            for lane in range(lanes):
                self.claim(seat, lane, used, old=False)

    @rule(seat=st.sampled_from(sorted(SEATS)), same=st.booleans(), host=st.sampled_from(["h1", "h1", "h2"]))
    def register(self, seat: str, same: bool, host: str) -> None:
        lanes, budget, queues = SEATS[seat]
        inc = self.incarnations[seat] if same else f"i{next(self.numbers)}"
        if self.grid.seat(seat, *queues, inc=inc, host=host, lanes=lanes, budget=budget) is None:
            self.incarnations[seat] = inc

    @precondition(lambda self: len(self.live()) < 4)
    @rule(tree=trees, agent=st.sampled_from(["ann", "bob"]), prio=st.integers(0, 1), celery=st.booleans())
    def admit(self, tree: tuple[object, ...], agent: str, prio: int, celery: bool) -> None:
        name = f"j{next(self.numbers)}"
        given = Builder(tree).plan()
        self.jobs.append(self.grid.job(given, name, agent=agent, prio=prio, celery=celery))
        assert self.grid.admit(given, name) == ["known"]

    @rule()
    def enqueue(self) -> None:
        name = f"q{next(self.numbers)}"
        assert self.grid.enqueue(name)
        assert not self.grid.enqueue(name)
        self.queued.append(name)

    @rule(
        seat=st.sampled_from(sorted(SEATS)),
        lane=st.integers(0, 1),
        used=st.integers(0, 3_000),
        old=st.booleans(),
    )
    def claim(self, seat: str, lane: int, used: int, old: bool) -> None:
        inc = "old" if old else self.incarnations[seat]
        before = self.grid.held(seat).get(str(lane))
        found = self.grid.claim(seat, str(lane), inc)
        if isinstance(found, Claim):
            assert not old
            assert before in (None, found.lease)
            self.keep(found, used)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), output=st.sampled_from([b"true", b"false", b"1"]), go_on=st.booleans())
    def complete(self, data: st.DataObject, output: bytes, go_on: bool) -> None:
        lease = data.draw(self.some_lease())
        result, _, after = self.grid.complete(lease, output, used=self.used[lease], go_on=go_on)
        self.reported.add(lease)
        if result == 1:
            self.recorded[lease.rsplit(":", 2)[0]] += 1
            again, _, same = self.grid.complete(lease, output, used=self.used[lease], go_on=go_on)
            assert again == 0
            if isinstance(after, Claim):
                assert isinstance(same, Claim)
                assert same.lease == after.lease
            after = same
        if isinstance(after, Claim):
            self.keep(after, 100)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["seat", "seat", "stage", "died", "back"]),
        pause=st.sampled_from([0, 1000]),
        twice=st.booleans(),
    )
    def fail(self, data: st.DataObject, kind: str, pause: int, twice: bool) -> None:
        lease = data.draw(self.some_lease())
        self.grid.fail(lease, kind, pause_ms=pause, used=self.used[lease])
        self.reported.add(lease)
        if twice:
            assert self.grid.fail(lease, kind, pause_ms=pause, used=self.used[lease]) == "fenced"

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def stream(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases[-6:]))
        self.grid.scripts.emit(lease, "root", ['"piece"'])

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), swept=st.booleans())
    def lapse(self, data: st.DataObject, swept: bool) -> None:
        lease = data.draw(self.some_lease())
        self.grid.client.zadd(self.grid.keys("leases"), {lease: 1}, xx=True)
        if swept:
            self.grid.sweep()

    @rule(seat=st.sampled_from(sorted(SEATS)))
    def die(self, seat: str) -> None:
        self.grid.client.zadd(self.grid.keys("seats"), {seat: 1}, xx=True)

    @rule(seat=st.sampled_from(sorted(SEATS)))
    def renew(self, seat: str) -> None:
        mine = [lease for lease in self.leases if self.grid.holders[lease][0] == seat]
        lost = self.grid.scripts.renew(seat, self.incarnations[seat], mine)
        if lost is not None:
            assert set(mine) - set(lost) == set(self.grid.held(seat).values())

    @rule(seat=st.sampled_from(sorted(SEATS)), how=st.sampled_from(["drain", "go"]))
    def leave(self, seat: str, how: str) -> None:
        self.grid.scripts.leave(seat, self.incarnations[seat], how)

    @precondition(lambda self: self.jobs or self.queued)
    @rule(data=st.data(), expire=st.booleans())
    def stop(self, data: st.DataObject, expire: bool) -> None:
        job = data.draw(st.sampled_from((self.jobs + self.queued)[-4:]))
        if expire:
            self.grid.client.zadd(self.grid.keys("deadlines"), {job: 1}, xx=True)
        else:
            self.grid.scripts.stop(job, "cancelled", "{}")
            assert self.grid.scripts.stop(job, "cancelled", "{}") == "over"

    @rule(over=st.booleans(), gap=st.booleans())
    def sweep(self, over: bool, gap: bool) -> None:
        if over:
            self.grid.wait_over()
        if gap:
            self.grid.client.set(self.grid.keys("swept"), 1)
            self.grid.scripts.sweep()
        else:
            self.grid.sweep()

    @rule()
    def forget(self) -> None:
        self.grid.client.script_flush()

    # -- what must hold --------------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        wrong = broken(self.grid.client, self.grid.keys)
        assert not wrong, "\n".join(wrong)

    @invariant()
    def once(self) -> None:
        assert not {stage: count for stage, count in self.recorded.items() if count > 1}

    @invariant()
    def budgets(self) -> None:
        who = self.grid.client.hgetall(self.grid.keys("who"))
        holds: Counter[str] = Counter()
        for by in who.values():
            seat, _, hold = by.decode().split(" ")
            holds[seat] += int(hold)
        for seat, (_, budget, _) in SEATS.items():
            left = self.grid.left(seat)
            charged = sum(self.used[lease] for lease in self.reported if self.grid.holders[lease][0] == seat)
            if left is None:
                assert budget is None or self.incarnations[seat] == "i0"
            else:
                assert left + holds[seat] + charged == budget

    @invariant()
    def few_bells(self) -> None:
        for queue in (ONE, TWO, PURE):
            assert self.grid.bells(queue) <= 3  # the most lanes that ever listen

    def teardown(self) -> None:
        """Whatever happened: with one good seat every job comes to its end, and nothing of it stays."""
        grid = self.grid
        for job in self.queued:
            grid.scripts.stop(job, "cancelled", "{}")
        for _ in range(400):
            if not self.live():
                break
            grid.wait_over()
            grid.seat("m.z", ONE, TWO, PURE)
            for lease in list(grid.held("m.z").values()):
                grid.complete(lease, b"true")
            found = grid.claim("m.z")
            if isinstance(found, Claim):
                assert grid.complete(found, b"true")[0] == 1
            else:
                for lease in grid.client.zrange(grid.keys("leases"), 0, -1):
                    grid.age("leases", lease.decode())
        assert not self.live()
        for job in self.jobs:
            assert grid.end(job) is not None
        self.consistent()
        for seat, inc in [*self.incarnations.items(), ("m.z", "i1")]:
            grid.scripts.leave(seat, inc, "go")
        grid.wait_over()
        grid.client.delete(grid.keys("answers"), *(grid.keys.queue(queue) for queue in (ONE, TWO, PURE)))
        grid.sweep()
        kinds = {name.partition(":")[0] for name in grid.own()}
        history = {"fin", "rows", "str", "about", "jobs", "past"}
        assert kinds <= history | {"seat", "late", "vt", "swept", "losses", "bells", "bellno"}
        assert not keys_without_ttl(grid.client, grid.keys.prefix)
        grid.client.unlink(*grid.client.scan_iter(f"{grid.keys.prefix}*", count=5000))

    # -- what is known ---------------------------------------------------------------------------------------

    def live(self) -> list[str]:
        return [job for job in self.jobs if self.grid.end(job) is None]

    def some_lease(self) -> st.SearchStrategy[str]:
        """Mostly an open one, at times one that is over."""
        held = [lease for seat in SEATS for lease in sorted(self.grid.held(seat).values())]
        return st.sampled_from(held * 2 + self.leases[-6:])

    def keep(self, claim: Claim, used: int) -> None:
        if claim.lease not in self.used:
            self.used[claim.lease] = used
            self.leases.append(claim.lease)


@pytest.mark.timeout(300)  # to shrink what it finds takes longer
def test_any_order_of_calls(grid_env: GridEnv) -> None:
    """Stages run once, budgets add up, and every step is in one place, whatever is called when."""
    numbers = itertools.count()
    machines.run(lambda: Protocol(grid_env, next(numbers)))
