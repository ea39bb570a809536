"""Measure the longest call in the server while there are thousands of agents, seats, queues, classes or jobs.

As `benchmarks.huge_graphs` does for the stages of one job: what grows with the grid must not hold up others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from benchmarks.huge_graphs import measure_scenarios, sweep_up
from benchmarks.measure import Measurement
from gridq.router.sweep import BATCH_ITEMS
from gridq.store.replies import Claim
from tests.unit.store.limits import limit
from tests.unit.store.plans import ANY, Grid, one, plan, step

SIZES = (3_000, 20_000)


def run(*, sizes: Sequence[int] = SIZES, rounds: int = 2) -> list[Measurement]:
    """Return the longest call of each scenario at each size."""
    return measure_scenarios(SCENARIOS, sizes, rounds, "of them")


# -- agents and their limits ---------------------------------------------------------------------------------


def _submit_as_team(grid: Grid, agents: int) -> None:
    """One agent runs a stage; each of the others has one that waits. All are of the team red."""
    names = [f"a{number}" for number in range(agents)]
    members = "".join(f'[agents.{name}]\nteam = "red"\n' for name in ["first", *names])
    limit(grid, f"[teams.red]\nmonthly_dollars = 1\n{members}")
    for name in ["first", *names]:
        grid.job(one(), agent=name)


def park_team(grid: Grid, size: int) -> None:
    """Agents of a team that goes over its limit while each has work waiting."""
    _submit_as_team(grid, size)
    grid.seat()
    grid.complete(grid.take(), used=2_000_000, go_on=True)
    sweep_up(grid)
    assert grid.client.hlen(grid.keys("parked_agents")) >= size - 1  # the slot may have taken one before


def lower_limits(grid: Grid, size: int) -> None:
    """Agents with work waiting when their limit is lowered, then lifted."""
    limit(grid, '[agents."*"]\nmonthly_dollars = 1\n')
    for number in range(size):
        grid.job(one(), agent=f"a{number}")
    limit(grid, '[agents."*"]\nmonthly_dollars = 0\n')
    sweep_up(grid)
    assert grid.client.hlen(grid.keys("parked_agents")) == size
    limit(grid, '[agents."*"]\nbudgets = [{tokens = 0, per = "day"}]\n')
    sweep_up(grid)
    assert grid.client.hlen(grid.keys("parked_agents")) == size
    limit(grid, '[agents."*"]\nmonthly_dollars = 1\n')
    sweep_up(grid)
    assert not grid.client.exists(grid.keys("parked_agents"))


def name_accounts(grid: Grid, size: int) -> None:
    """Agents that the quotas file names, each with meters of its own."""
    text = "".join(
        f'[agents.a{number}]\nbudgets = [{{dollars = 1, per = "day"}}, {{tokens = 9, per = "week"}}]\n'
        for number in range(size)
    )
    limit(grid, text)
    limit(grid, text.replace("dollars = 1", "dollars = 2"))
    grid.client.set(grid.keys("last_sweep"), grid.now() + 100_000)
    grid.scripts.sweep()
    sweep_up(grid)


# -- seats ---------------------------------------------------------------------------------------------------


def _seats(grid: Grid, size: int, **more: object) -> None:
    for number in range(size):
        grid.seat(f"m.s{number}", host=f"h{number}", **more)  # type: ignore[arg-type]


def die_together(grid: Grid, size: int) -> None:
    """Seats that run a stage each and lapse together."""
    _seats(grid, size)
    grid.job(plan(*(step() for _ in range(size))))
    for number in range(size):
        grid.take(f"m.s{number}")
    seats = grid.keys("seats")
    grid.client.zadd(seats, {f"m.s{number}": 1 for number in range(size)})
    grid.client.zadd(grid.keys("leases"), dict.fromkeys(grid.client.zrange(grid.keys("leases"), 0, -1), 1))
    sweep_up(grid)


def limit_seats(grid: Grid, size: int) -> None:
    """Live seats when limits are put in force."""
    _seats(grid, size, budget=1000)
    limit(grid, '[grid]\nbudgets = [{dollars = 5, per = "day"}]\n')
    limit(grid, '[grid]\nbudgets = [{dollars = 6, per = "day"}, {tokens = 9, per = "week"}]\n')
    sweep_up(grid)


def make_seats_unavailable(grid: Grid, size: int) -> None:
    """Seats that take no work while stages wait for them."""
    cause = [{"queues": [ANY], "began_ms": 60_000, "owner": True, "state": "key_refused", "reason": "x"}]
    _seats(grid, size, draining=True, unavailable=json.dumps(cause))
    for number in range(200):
        grid.job(one(), agent=f"a{number}")
    for job in grid.client.zrange(grid.keys("jobs"), 0, -1):
        grid.client.hset(grid.keys("job", job.decode()), "ready_at:0", 1)
    for key in grid.client.scan_iter(grid.keys("waiting", "*")):
        for member in grid.client.zrange(key, 0, -1):
            grid.client.zadd(key, {member: 1})
    sweep_up(grid)


def lend_seats(grid: Grid, size: int) -> None:
    """Seats that are lent to others than the agent that submits."""
    _seats(grid, size, lent_to=["bob"])
    grid.admit(one(), agent="ann", wait=False)
    grid.job(one(), agent="ann")
    sweep_up(grid)


def spend_seats(grid: Grid, size: int) -> None:
    """Seats whose budgets are used up, in a bounded queue."""
    _seats(grid, size, budget=0)
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 10')
    for number in range(20):
        grid.admit(one(cost=100), agent=f"a{number}")
    sweep_up(grid)


def rank_seats(grid: Grid, size: int) -> None:
    """Seats of one queue that are ranked."""
    _seats(grid, size)
    grid.scripts.rank(ANY, {f"m.s{number}": number for number in range(size)}, 60_000)


# -- queues and classes --------------------------------------------------------------------------------------


def wait_in_queues(grid: Grid, size: int) -> None:
    """Queues with a waiting stage each."""
    for number in range(size):
        grid.job(one(queue=f"bench:q{number}"))
    sweep_up(grid)
    limit(grid, '[agents."*"]\nmonthly_dollars = 0\n')
    sweep_up(grid)


def serve_queues(grid: Grid, size: int) -> None:
    """Queues that one seat serves."""
    queues = [f"bench:q{number}" for number in range(size)]
    grid.seat("m.a", *queues)
    for queue in queues[::10]:
        grid.job(one(queue=queue))
    for _ in range(10):
        grid.done(grid.take())
    grid.scripts.renew("m.a", "i1", [], queues)
    grid.scripts.leave("m.a", "i1", "drain")
    sweep_up(grid)


# -- jobs that are due at one instant ------------------------------------------------------------------------


def _make_due(grid: Grid, name: str) -> None:
    members = grid.client.zrange(grid.keys(name), 0, -1)
    for at in range(0, len(members), 1000):
        grid.client.zadd(grid.keys(name), dict.fromkeys(members[at : at + 1000], 1))


def expire_together(grid: Grid, size: int) -> None:
    """Jobs whose deadlines pass at one instant."""
    limit(grid, '[agents."*"]\nmonthly_dollars = 1\n')
    for _ in range(size):
        grid.job(one())
    _make_due(grid, "deadlines")
    sweep_up(grid)
    _make_due(grid, "ended_jobs")
    sweep_up(grid)


def time_out_together(grid: Grid, size: int) -> None:
    """Jobs whose queue timeouts pass at one instant."""
    for _ in range(size):
        grid.job(one(), queue_timeout_ms=3_000_000)
    _make_due(grid, "delays")
    sweep_up(grid)


def back_off_together(grid: Grid, size: int) -> None:
    """Stages whose back-offs end at one instant."""
    grid.job(plan(*(step() for _ in range(size))))
    grid.seat()
    grid.seat("m.b")
    for _ in range(size):
        claim = grid.claim()
        if not isinstance(claim, Claim):
            break
        grid.fail(claim, "seat", pause_ms=3_000_000)
    _make_due(grid, "delays")
    sweep_up(grid)


def wait_in_inbox(grid: Grid, size: int) -> None:
    """Jobs in the inbox whose messages are due."""
    for number in range(size):
        grid.enqueue(f"e{number}")
    _make_due(grid, "inbox")
    for _ in range(20):
        grid.sweep(BATCH_ITEMS)
    grid.client.delete(grid.keys.queue("gridq:router"))
    _make_due(grid, "deadlines")
    sweep_up(grid)


def fall_back(grid: Grid, size: int) -> None:
    """Waiting stages with fall-backs, whose first seat leaves."""
    grid.seat("m.a", "bench:x")
    grid.seat("m.b", "bench:y")
    grid.job(plan(*(step(queue="bench:x", fallbacks=("bench:y",)) for _ in range(size))))
    grid.scripts.leave("m.a", "i1", "go")
    sweep_up(grid)


SCENARIOS: tuple[Callable[[Grid, int], None], ...] = (
    park_team, lower_limits, name_accounts, die_together, limit_seats, make_seats_unavailable,
    lend_seats, spend_seats, rank_seats, wait_in_queues, serve_queues, expire_together, time_out_together,
    back_off_together, wait_in_inbox, fall_back,
)  # fmt: skip
"""What is measured. Each takes a fresh grid and a number; its docstring names it."""
