"""Seats, owners, families, the whole grid, agents and teams under budgets that change at any moment: after
each call the meters are what the ledger and the open leases say, and none is overdrawn.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from gridq.app import app
from gridq.graph.plan import Scope
from gridq.limits.ledger_verification import verify
from gridq.messaging import wake_ups
from gridq.protocol.meters import Meter, parse_budget, parse_shared_accounts
from gridq.protocol.models import Limit, Resource
from gridq.store.replies import Accepted, Claim
from gridq.views.audit import find_breaches
from tests.conftest import GridEnv
from tests.machines import LONG
from tests.unit.store.limits import DAY, HOUR, expire_meters, limit, turn, turn_at
from tests.unit.store.plans import Grid, Tokens, chain, one, plan, step, wide

SEEDS = range(40 if LONG else 3)
STEPS = 1_000 if LONG else 200

SEATS: dict[str, tuple[str, ...]] = {
    "m.a": ("llm:any", "llm:opus"),
    "m.b": ("llm:any",),
    "m.c": ("llm:opus", "llm:haiku"),
    "m.r": ("gridq:local",),
}
OWNERS = ("", "alice", "bob")
FAMILIES: tuple[dict[str, list[str]], ...] = (
    {},
    {"llm:opus": ["opus-4", "opus"]},
    {"llm:opus": ["opus"], "llm:any": ["opus"], "llm:haiku": ["haiku"]},
)
WINDOWS = ("month", "week", "day", "5h", "1m", "3d")
CALENDAR = ("month", "week", "day")
AGENTS = ("ann", "bob", "cleo", "dora")
THINGS: tuple[Resource, ...] = ("money", "tokens", "requests", "gpu_seconds")
AMOUNTS = {
    "money": (0, 900, 3_000, 20_000),
    "tokens": (0, 50, 700, 9_000),
    "requests": (0, 1, 4, 30),
    "gpu_seconds": (0, 2_000, 60_000, 200_000),
}
KEYS = {
    "money": "dollars",
    "tokens": "tokens",
    "requests": "requests",
    "jobs": "jobs",
    "gpu_seconds": "gpu_seconds",
}
UNITS = {"money": 1_000_000, "gpu_seconds": 1_000}
"""How much of a resource one unit in a file is, if not 1."""
COSTS = (0, 0, 400, 1_000, 3_000)


class RandomCalls:
    """One grid and its random calls."""

    def __init__(self, env: GridEnv, seed: int) -> None:
        self.random = random.Random(seed)
        self.env = env
        config = env.settings.model_copy(update={"prefix": f"{env.prefix}{seed}."})
        self.grid = Grid(env.client, config)
        wake_ups.write_templates(app, self.grid.client, self.grid.keys)
        self.leases: dict[str, Claim] = {}
        self.closed: list[str] = []
        self.jobs: list[str] = []
        self.inc = dict.fromkeys(SEATS, 0)
        self.changes: list[str] = []

    # -- what is done

    def start(self) -> None:
        for period, ahead in zip(CALENDAR, (20 * DAY, 6 * DAY, 20 * HOUR), strict=True):
            turn_at(self.grid, ahead, period=period)
        limit(self.grid, "")
        for seat in SEATS:
            self.register(seat)

    def limits(self, some: int) -> list[Limit]:
        found: dict[tuple[Resource, str], Limit] = {}
        for _ in range(self.random.randrange(some)):
            resource: Resource = self.random.choice(THINGS)
            window = self.random.choice(WINDOWS)
            found[resource, window] = Limit(
                resource=resource, window=window, amount=self.random.choice(AMOUNTS[resource])
            )
        if self.random.random() < 0.2:
            found["parallel", "-"] = Limit(resource="parallel", window="-", amount=self.random.randrange(4))
        return list(found.values())

    def register(self, seat: str = "", *, anew: bool = False) -> None:
        seat = seat or self.random.choice(list(SEATS))
        self.inc[seat] += anew
        draw = self.random.choice
        self.grid.seat(
            seat, *SEATS[seat], inc=f"i{self.inc[seat]}", concurrency=3, limits=self.limits(4),
            owner=draw(OWNERS), families=draw(FAMILIES) if seat != "m.r" else {},
            prices=draw((None, (1_000_000, 5_000_000))),
            hourly_price=draw((None, None, (0, 30_000), (3_600_000, 2_500), (999_999, 60_000))),
        )  # fmt: skip

    def table(self, name: str, some: int, *, people: bool = False) -> str:
        lines, budgets = [f"[{name}]"], []
        for one_of in self.limits(some):
            if one_of.resource == "parallel":
                lines += [] if people else [f"parallel = {one_of.amount}"]
            elif not (people and one_of.window not in CALENDAR):
                resource = "jobs" if people and one_of.resource == "requests" else one_of.resource
                amount = one_of.amount if resource not in UNITS else one_of.amount / UNITS[resource]
                amount = int(amount) if resource == "gpu_seconds" else amount
                budgets.append(f'{{{KEYS[resource]} = {amount}, per = "{one_of.window}"}}')
        return "\n".join([*lines, f"budgets = [{', '.join(budgets)}]", ""])

    def change(self) -> None:
        draw = self.random.random
        if draw() < 0.15:
            self.changes.append("lifted")
            limit(self.grid, "")
            return
        parts = []
        if draw() < 0.5:
            parts.append(self.table("grid", 3))
        parts += [self.table(f"owners.{name}", 3) for name in OWNERS[1:] if draw() < 0.5]
        parts += [self.table(f"families.{name}", 3) for name in ("opus", "opus-4", "haiku") if draw() < 0.4]
        parts += [self.table(f'seats."{name}"', 3) for name in SEATS if draw() < 0.3]
        team = draw() < 0.6
        if team:
            parts.append(self.table("teams.t", 3, people=True))
        for agent in ("ann", "bob", '"*"'):
            if draw() < 0.5:
                more = 'team = "t"\n' if team and agent == "ann" else ""
                parts.append(self.table(f"agents.{agent}", 3, people=True) + more)
        text = "\n".join(parts)
        self.changes.append(text)
        limit(self.grid, text)

    def admit(self) -> None:
        draw = self.random.choice
        queue = draw(("llm:any", "llm:any", "llm:opus", "llm:haiku", "gridq:local"))
        cost = 0 if queue == "gridq:local" else draw(COSTS)
        fields: dict[str, Any] = {"queue": queue, "cost": cost}
        made = draw(
            (
                one(**fields), chain(3, **fields), wide(3, **fields),
                plan(
                    step(scope=0, **fields), step(0, scope=0, **fields),
                    scopes=[Scope("root", None, 2, 0, ((0, 0), (1, 1)))],
                ),
            )
        )  # fmt: skip
        job = f"j{len(self.jobs)}"
        if self.grid.admit(made, job, agent=draw(AGENTS), prio=draw((0, 1))) != Accepted():
            return
        self.jobs.append(job)
        for number in range(len(made.steps)):
            if draw((True, False)):
                tokens = f"{draw((0, 10, 300))} {draw((0, 20, 500, 10_000))}{draw(('', ' 900', ' 40000'))}"
                tokens += draw(("", "", " g500", " g90000"))
                self.grid.client.hset(self.grid.keys("job", job), f"tokens:{number}", tokens)

    def claim(self) -> None:
        seat = self.random.choice(list(SEATS))
        self.add_lease(self.grid.claim(seat, str(self.random.randrange(3)), f"i{self.inc[seat]}"))

    def add_lease(self, found: Claim | str) -> None:
        if isinstance(found, Claim):
            self.leases[found.lease] = found

    def used(self, queue: str) -> tuple[int | None, Tokens]:
        if queue == "gridq:local" and self.random.random() < 0.8:
            return 0, (0, 0)
        draw = self.random.choice
        tokens = draw((0, 30, 400)), draw((0, 5, 500)), draw((0.0, 0.0, 1.5, 80.0))
        return draw((None, 0, 300, 1_000, 6_000)), tokens

    def pop_lease(self) -> Claim | None:
        if not self.leases:
            return None
        claim = self.leases.pop(self.random.choice(sorted(self.leases)))
        self.closed.append(claim.lease)
        return claim

    def complete(self) -> None:
        claim = self.pop_lease()
        if claim is not None:
            micro, tokens = self.used(claim.queue)
            self.add_lease(
                self.grid.complete(claim, used=micro, tokens=tokens, go_on=self.random.random() < 0.5)[2]
            )

    def fail(self) -> None:
        claim = self.pop_lease()
        if claim is not None:
            micro, tokens = self.used(claim.queue)
            kind = self.random.choice(("seat", "stage", "back", "died"))
            self.grid.fail(claim, kind, used=micro, tokens=tokens)

    def late(self) -> None:
        """Report again, or for the first time, for an attempt that is closed."""
        if self.closed:
            lease = self.random.choice(self.closed[-20:])
            micro, tokens = self.used("llm:any")
            if self.random.random() < 0.5:
                self.grid.fail(
                    lease, self.random.choice(("seat", "stage", "back")), used=micro, tokens=tokens
                )
            else:
                self.add_lease(self.grid.complete(lease, used=micro, tokens=tokens)[2])

    def lapse(self) -> None:
        claim = self.pop_lease()
        if claim is not None and self.grid.client.zscore(self.grid.keys("leases"), claim.lease):
            self.grid.age("leases", claim.lease)
            self.grid.sweep()

    def leave(self) -> None:
        seat = self.random.choice(list(SEATS))
        self.grid.scripts.leave(seat, f"i{self.inc[seat]}", self.random.choice(("go", "died", "drain")))
        self.register(seat, anew=self.random.random() < 0.8)

    def stop(self) -> None:
        if self.jobs:
            job = self.random.choice(self.jobs[-20:])
            if self.random.random() < 0.5:
                self.grid.scripts.stop(job, "cancelled", "{}")
            elif self.grid.client.zscore(self.grid.keys("deadlines"), job):
                self.grid.age("deadlines", job)
                self.grid.sweep()

    def turns(self) -> None:
        window = self.random.choice(WINDOWS)
        if window in CALENDAR:
            turn(self.grid, window)
        else:
            expire_meters(self.grid, window)

    def set_back(self) -> None:
        """Set back a clock that was ahead when windows began: they end far in the future."""
        keys, ends = self.grid.keys, re.compile(r"/(\d{12,})(?= |$)")
        ahead = self.random.choice((DAY, 90 * DAY))
        client = self.grid.client
        places = [(keys("seat", seat), which) for seat in SEATS for which in ("own", "grid")]
        places += [(keys("meters"), name.decode()) for name in client.hkeys(keys("meters"))]
        for key, field in places:
            text = client.hget(key, field)
            if text:
                client.hset(key, field, ends.sub(lambda m: f"/{int(m[1]) + ahead}", text.decode()))
        if self.random.random() < 0.5:
            client.set(keys("last_sweep"), self.grid.now() + ahead, px=HOUR)
            self.grid.scripts.sweep()

    def sweep(self) -> None:
        self.grid.wait_over()
        for seat, serves in SEATS.items():
            measured = [queue for queue in serves if self.random.random() < 0.3]
            takes = {queue: self.random.choice((0, 350, 1_700, 90_000)) for queue in measured}
            self.grid.scripts.renew(seat, f"i{self.inc[seat]}", [], stage_ms=takes)

    # -- what must hold

    def list_meters(self, seat: str) -> list[Meter]:
        """All meters that bind a seat now."""
        keys, client, now = self.grid.keys, self.grid.client, self.grid.now()
        record: Any = client.hgetall(keys("seat", seat))
        found = [m for which in ("own", "grid") for m in parse_budget(record.get(which.encode()), which, now)]
        for name, only in parse_shared_accounts(record.get(b"shared_budgets")).items():
            found += parse_budget(client.hget(keys("meters"), name), name, now, only)
        return found

    def check(self, text: str) -> None:
        entered = verify(self.grid.client, self.grid.keys)
        assert (entered.differences, entered.notes) == ((), ()), text
        wrong = find_breaches(self.grid.client, self.grid.keys)
        assert not wrong, (text, wrong)
        everything = [
            raw
            for seat in SEATS
            for raw in self.grid.client.hmget(self.grid.keys("seat", seat), "own", "grid")
        ]
        everything += self.grid.client.hvals(self.grid.keys("meters"))
        for raw in everything:
            assert raw is None or re.fullmatch(rb"(\w+/[^/ ]+/\d+/\d+/\d+/\d*( |$))+", raw), raw

    def check_claim(self, claim: Claim, before: list[Meter]) -> None:
        """Check that every limit that binds a claim had enough left for it."""
        who: Any = self.grid.client.hget(self.grid.keys("lease_info"), claim.lease)
        seat, _, money, *more = who.decode().split()
        if len(more) < 3:
            assert not before, (who, before)
            return
        gpu_ms = int(more[2]) if len(more) > 3 else None
        holds = {
            "money": int(money),
            "tokens": int(more[0]),
            "requests": int(more[1]),
            "parallel": int(more[1]),
        }
        if claim.queue.startswith("gridq:"):
            return  # what costs nothing goes on
        for meter in before:
            if meter.resource == "gpu_seconds":
                if gpu_ms is not None and meter.applies_to(claim.queue):
                    assert meter.remaining >= max(min(gpu_ms, meter.limit), 1), (seat, meter, gpu_ms)
            elif meter.applies_to(claim.queue):
                need = holds[meter.resource]
                if meter.resource in ("money", "tokens"):
                    need = max(min(need, meter.limit), meter.resource == "tokens")
                assert meter.remaining >= need, (seat, meter, holds)

    def run(self, steps: int) -> None:
        self.start()
        calls = (
            [self.admit] * 5
            + [self.claim] * 8
            + [self.complete] * 4
            + [self.fail] * 3
            + [self.late] * 2
            + [self.lapse, self.leave, self.stop, self.turns, self.set_back, self.register, self.change]
            + [self.sweep] * 2
        )
        for number in range(steps):
            call = self.random.choice(calls)
            before = {seat: self.list_meters(seat) for seat in SEATS} if call == self.claim else {}
            known = set(self.leases)
            call()
            for lease in set(self.leases) - known if before else ():
                self.check_claim(self.leases[lease], before[self.grid.holders[lease][0]])
            self.check(f"step {number}: {call.__name__}; limits {self.changes[-1:]}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_of_calls(grid_env: GridEnv, seed: int) -> None:
    """A budget is reserved once, in every window, whatever changes meanwhile."""
    RandomCalls(grid_env, seed).run(STEPS)
