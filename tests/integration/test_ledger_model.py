"""Agents, teams and a seat whose limits change at any moment, with invariants checked after each call."""

from __future__ import annotations

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

from gridq.app import app
from gridq.limits.accounts import Account, read_accounts
from gridq.limits.ledger_verification import verify
from gridq.messaging import wake_ups
from gridq.store.replies import Accepted, Claim
from gridq.views.audit import find_breaches
from tests import machines
from tests.conftest import GridEnv
from tests.unit.store.limits import DAY, limit, read_parked_agents, turn, turn_at
from tests.unit.store.plans import Grid, chain

TEAMS = {"ann": "t", "bob": "t", "cleo": None}
AGENTS = sorted(TEAMS)
CONCURRENCY = 3

amounts = st.sampled_from([None, 0, 1_000, 5_000, 20_000])


class Ledgers(RuleBasedStateMachine):
    """One grid; the model is what each job holds and what was recorded for it, added up anew each time."""

    def __init__(self, env: GridEnv, number: int) -> None:
        super().__init__()
        # No lease is renewed here, and on a busy machine the calls of one run may take longer than a lease
        # lasts.
        config = env.settings.model_copy(update={"prefix": f"{env.prefix}{number}.", "lease_ms": 600_000})
        self.grid = Grid(env.client, config)
        wake_ups.write_templates(app, self.grid.client, self.grid.keys)
        self.numbers = itertools.count(1)
        self.jobs: dict[str, tuple[str, int]] = {}  # job → agent, its reservation
        self.spent: Counter[str] = Counter()
        self.count: Counter[str] = Counter()
        self.money: dict[str, int | None] = {}
        self.leases: dict[str, Claim] = {}
        self.charged = 0

    # -- what is done

    @initialize()
    def start(self) -> None:
        turn_at(self.grid, DAY)
        limit(self.grid, "")  # no limit, yet a ledger
        self.grid.seat(concurrency=CONCURRENCY, budget=10**9)

    @rule(ann=amounts, cleo=amounts, team=amounts)
    def change(self, ann: int | None, cleo: int | None, team: int | None) -> None:
        self.money = {"ann": ann, "cleo": cleo, "t": team}
        text = "".join(
            f"[{kind}.{name}]\n{more}monthly_dollars = {self._dollars(self.money.get(name))}\n"
            for kind, name, more in (
                ("teams", "t", ""), ("agents", "ann", 'team = "t"\n'), ("agents", "bob", 'team = "t"\n'),
                ("agents", "cleo", ""),
            )
        )  # fmt: skip
        limit(self.grid, text)
        self.known_teams = True

    known_teams = False

    @staticmethod
    def _dollars(micro: int | None) -> str:
        return '"none"' if micro is None else str(micro / 1_000_000)

    @precondition(lambda self: self.known_teams)
    @rule(
        agent=st.sampled_from(AGENTS), cost=st.sampled_from([0, 400, 1_000, 3_000]), length=st.integers(1, 3)
    )
    def admit(self, agent: str, cost: int, length: int) -> None:
        job = f"j{next(self.numbers)}"
        reply = self.grid.admit(chain(length, cost=cost), job, agent=agent)
        needed = max(cost * length, 1)
        fits = all(
            limit_ is None or self.spent[who] + self.held(who) + needed <= limit_
            for who, limit_ in self.binding(agent)
        )
        assert (reply == Accepted()) == fits, reply
        if fits:
            self.jobs[job] = agent, cost * length
            for who, _ in self.binding(agent):
                self.count[who] += 1

    @rule(slot=st.integers(0, CONCURRENCY - 1))
    def claim(self, slot: int) -> None:
        found = self.grid.claim(slot=str(slot))
        if isinstance(found, Claim) and found.lease not in self.leases:
            assert not self.over(found.agent)
            self.leases[found.lease] = found

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), used=st.sampled_from([0, 300, 1_000, 6_000]), go_on=st.booleans())
    def complete(self, data: st.DataObject, used: int, go_on: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        claim = self.leases.pop(lease)
        result, ended, after = self.grid.complete(lease, used=used, go_on=go_on)
        self.charged += used
        if result == 1:
            agent, held = self.jobs[claim.job]
            self.jobs[claim.job] = agent, max(held - used, 0)
            for who, _ in self.binding(agent):
                self.spent[who] += used
            if ended:
                del self.jobs[claim.job]
        else:
            assert claim.job not in self.jobs
        if isinstance(after, Claim):
            assert not self.over(after.agent)
            self.leases[after.lease] = after

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), kind=st.sampled_from(["stage", "back"]), used=st.sampled_from([0, 700]))
    def fail(self, data: st.DataObject, kind: str, used: int) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        claim = self.leases.pop(lease)
        if self.grid.fail(lease, kind, used=used) == "plain":
            del self.jobs[claim.job]
        self.charged += used

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), expire=st.booleans())
    def stop(self, data: st.DataObject, expire: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        if expire:
            self.grid.age("deadlines", job)
            self.grid.sweep()
        else:
            assert self.grid.scripts.stop(job, "cancelled", "{}") == "plain"
        del self.jobs[job]

    @rule()
    def month(self) -> None:
        turn(self.grid)
        self.spent.clear()
        self.count.clear()
        self.charged = 0
        self.grid.scripts.renew("m.a", "i1", [])
        self.grid.sweep()

    @rule()
    def sweep(self) -> None:
        self.grid.sweep()
        assert not {agent for agent in read_parked_agents(self.grid) if not self.over(agent)}

    # -- what must hold

    @invariant()
    def consistent(self) -> None:
        wrong = find_breaches(self.grid.client, self.grid.keys)
        assert not wrong, "\n".join(wrong)

    @invariant()
    def ledgers(self) -> None:
        accounts = read_accounts(self.grid.client, self.grid.keys, "UTC").accounts
        found = {(account.name, account.what): account for account in accounts}
        for who in (*AGENTS, "t"):
            money = found.get((who, "money"), Account("agent", who, "money", None, 0, resource="money"))
            assert (money.spent, money.reserved) == (self.spent[who], self.held(who)), who
            if (who, "jobs") in found:
                assert found[who, "jobs"].spent == self.count[who]
        if ("m.a", "budget") in found:
            assert found["m.a", "budget"].spent == self.charged
        entered = verify(self.grid.client, self.grid.keys)
        assert (entered.differences, entered.notes) == ((), ())

    def teardown(self) -> None:
        """Without limits every job ends, and nothing is reserved any more."""
        limit(self.grid, "")
        for lease in list(self.leases):
            self.grid.complete(lease)
        for _ in range(200):
            found = self.grid.claim()
            if not isinstance(found, Claim):
                break
            self.grid.complete(found.lease)
        assert not self.grid.own() & {"reservations", "reserved", "parked_agents", "leases"}
        self.consistent()
        self.grid.client.unlink(*self.grid.client.scan_iter(f"{self.grid.keys.prefix}*", count=5000))

    # -- what is known

    def binding(self, agent: str) -> list[tuple[str, int | None]]:
        team = TEAMS[agent]
        found = [(agent, self.money.get(agent))]
        return [*found, (team, self.money.get(team))] if team else found

    def held(self, who: str) -> int:
        return sum(held for agent, held in self.jobs.values() if who in (agent, TEAMS[agent]))

    def over(self, agent: str) -> bool:
        limits = [(who, most) for who, most in self.binding(agent) if most is not None]
        return any(most == 0 or self.spent[who] > most for who, most in limits)


@pytest.mark.timeout(300)  # to shrink what it finds takes longer
def test_any_order_of_calls(grid_env: GridEnv) -> None:
    """A cent is reserved once, reservations are released, and agents over their limit are parked."""
    numbers = itertools.count()
    machines.run(lambda: Ledgers(grid_env, next(numbers)))
