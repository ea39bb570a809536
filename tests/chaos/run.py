"""One chaos run from its plan to its verdict, in bounded time."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery.states import PENDING
from redis.exceptions import RedisError

from gridq.app import app, disconnect
from gridq.errors import GridError
from gridq.limits import ledger as entries
from gridq.store.connection import translate
from gridq.views import jobs as history
from gridq.views import wait_reasons
from gridq.views.audit import Check, audit
from tests.chaos import books, witness
from tests.chaos.attacks import Attacker
from tests.chaos.bounds import overdrawn, uses
from tests.chaos.grid import GATEWAYS, START, ChaosGrid
from tests.chaos.judge import Judge, Verdict, recovery
from tests.chaos.layout import Layout
from tests.chaos.plan import Plan
from tests.chaos.submitting import Agents, Submitted

SETTLE = 180.0
"""Seconds after the last fault within which every job must have ended."""
QUIET = 30.0
"""Seconds after that within which nothing may be left of them."""
TELL_EVERY = 10.0
SHOWN = 10
"""Jobs that hang which are named one by one."""
LOOK_AT = 2000


@dataclass
class Result:
    """What came of a run. `checks`: every rule with what breaks it; `folder`: where the logs are, None where
    nothing was broken and they were not to be kept.
    """

    plan: Plan
    verdict: Verdict
    faults: Counter[str]
    seconds: float
    losses: int
    recovery: dict[str, list[float]]
    deaths: int
    ended_alone: list[str] = field(default_factory=list)
    folder: Path | None = None

    @property
    def checks(self) -> list[Check]:
        return self.verdict.checks

    @property
    def broken(self) -> bool:
        return any(check.breaches for check in self.checks)


@dataclass
class Judged:
    """What a judge has found: its verdict, how many attempts were lost with their worker, and the seconds
    from the death of a program to the next run of what it ran (`judge.recovery`).
    """

    verdict: Verdict
    losses: int
    recovery: dict[str, list[float]] = field(default_factory=dict)


def by_witness(grid: ChaosGrid, submitted: dict[str, Submitted]) -> Judged:
    """Hold every run of a stage that the witness's file has against what the grid has recorded."""
    runs, layout = witness.read(grid.witness), grid.layout
    with grid.direct() as client:
        found = books.read(client, grid.keys, submitted)
        ledger = list(entries.read(client, grid.keys))
    config = grid.config(grid.client_proxy, grid.folder / "agents")
    verdict = Judge(found, submitted, runs, config, celery_says).judge()
    verdict.uses = uses(layout.bounds, ledger, layout.owners, {})
    verdict.checks.append(
        Check("no limit is overdrawn, but by what was told of attempts given up", overdrawn(verdict.uses))
    )
    return Judged(verdict, found.losses, recovery(runs, grid.deaths, submitted))


def longest(seconds: float) -> float:
    """Seconds that a run whose faults go on for `seconds` takes at most."""
    return START + seconds + SETTLE + QUIET + 120.0


def run(
    plan: Plan,
    *,
    layout: Layout,
    routers: int = 2,
    settle: float = SETTLE,
    judge: Callable[[ChaosGrid, dict[str, Submitted]], Judged] | None = None,
    keep: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Result:
    """Start a grid, run the plan on it, judge what is left, stop it. Whatever happens, all programs end.

    `layout`: its machines and seats. Every job must have ended `settle` seconds after the last fault. `judge`
    reads what is left of the jobs on the grid at rest; without it every run is held against the witness's
    file. `tell` gets a line for each fault, the progress, and where the logs are if they are kept.
    ConfigError, StartTimeout, BrokerError: the grid could not be started, or its server does not answer in
    the end.
    """
    folder = Path(tempfile.mkdtemp(prefix="gridq-chaos-"))
    spare = True
    try:
        result = _run(
            plan,
            folder,
            layout,
            judge or by_witness,
            routers=routers,
            settle=settle,
            tell=tell,
        )
        spare = keep or result.broken
    except (KeyboardInterrupt, SystemExit):
        spare = keep
        raise
    finally:
        if not spare:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            tell(f"The logs are in {folder}")
    result.folder = folder if spare else None
    return result


def _run(
    plan: Plan,
    folder: Path,
    layout: Layout,
    judge: Callable[[ChaosGrid, dict[str, Submitted]], Judged],
    *,
    routers: int,
    settle: float,
    tell: Callable[[str], None],
) -> Result:
    grid = ChaosGrid(folder, layout=layout, routers=routers, tell=lambda text: tell(f"           {text}"))
    left: list[str] | None = None
    try:
        seats = ", ".join(f"{machine.name}.{seat}" for machine in layout.machines for seat in machine.seats)
        tell(f"Starting a server, {routers} routers, {GATEWAYS} gateways and the seats {seats} ...")
        grid.start()
        agents = Agents(plan, grid.config(grid.client_proxy, folder / "agents"), grid.urls)
        attacker = Attacker(grid, plan.faults, tell)
        began = time.monotonic()
        watch = _Watch(grid, agents, tell)
        try:
            agents.start()
            _attack(plan, grid, attacker, watch, began)
            attacker.end()
            tell("The faults are over; the grid settles ...")
            hung = _settle(grid, watch, settle)
            left_over = _quiet(grid)
        finally:
            watch.close()
            agents.stop()
        seconds = time.monotonic() - began
        judged = judge(grid, agents.submitted)
        disconnect()
        left = grid.stop()
        checks = judged.verdict.checks
        checks.insert(0, Check("every job ends, once the faults are over", tuple(hung)))
        checks += left_over
        checks.append(Check("every program ends when it is told to", (*grid.slow_ends, *left)))
        return Result(
            plan, judged.verdict, attacker.counts, seconds, judged.losses,
            judged.recovery, len(grid.deaths), grid.ended_alone,
        )  # fmt: skip
    except RedisError as exc:
        raise translate(exc, grid.server.url) from exc
    finally:
        if left is None:
            disconnect()
            grid.stop()


class _Watch:
    """How far the jobs are, seen on a connection of its own."""

    def __init__(self, grid: ChaosGrid, agents: Agents, tell: Callable[[str], None]) -> None:
        self.grid = grid
        self.agents = agents
        self.tell = tell
        self.open = list(agents.submitted)
        self._client = grid.direct()
        self._due = 0.0
        self._told = time.monotonic()

    def tick(self) -> None:
        """Look which jobs have ended, twice a second, and say so now and then."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + 0.5
        try:
            ended = self._ended(self.open[:LOOK_AT])
        except (RedisError, OSError):
            return
        self.open = [job for job in self.open if job not in ended]
        if now - self._told >= TELL_EVERY:
            self._told = now
            total = len(self.agents.submitted)
            known = sum(state.accepted for state in self.agents.submitted.values())
            self.tell(f"{now - self.agents.began:7.1f} s  {total - len(self.open)} of {total} jobs ended, "
                      f"{known} accepted")  # fmt: skip

    def close(self) -> None:
        self._client.close()

    def _ended(self, jobs: list[str]) -> set[str]:
        look = self._client.pipeline(transaction=False)
        for job in jobs:
            look.exists(self.grid.keys("result", job))
        found: list[Any] = look.execute()
        submitted = self.agents.submitted
        return {
            job
            for job, there in zip(jobs, found, strict=True)
            if there or (submitted[job].refused and not submitted[job].accepted and not self.agents.busy)
        }


def _attack(plan: Plan, grid: ChaosGrid, attacker: Attacker, watch: _Watch, began: float) -> None:
    while (elapsed := time.monotonic() - began) < plan.seconds:
        attacker.tick(elapsed)
        grid.tick()
        watch.tick()
        time.sleep(0.05)


def _settle(grid: ChaosGrid, watch: _Watch, settle: float) -> list[str]:
    """Wait until all has ended; what has not, and why."""
    until = time.monotonic() + settle
    while watch.open or watch.agents.busy:
        grid.tick()
        watch.tick()
        if time.monotonic() > until:
            return _hung(grid, watch)
        time.sleep(0.05)
    return []


def _hung(grid: ChaosGrid, watch: _Watch) -> list[str]:
    lines = []
    with grid.direct() as client:
        for job in watch.open[:SHOWN]:
            view = history.JobReader(client, grid.keys, job).read(rows=False)
            why = wait_reasons.explain_wait(client, grid.keys, view) if view.state is not None else "it is not known"
            lines.append(f"{job} has not ended: {why}")
    if len(watch.open) > SHOWN:
        lines.append(f"and {len(watch.open) - SHOWN} more jobs")
    if watch.agents.busy:
        lines.append(f"{watch.agents.busy} calls of agents are not answered")
    return lines


def _quiet(grid: ChaosGrid) -> list[Check]:
    """The rules on a grid at rest, once what is left has had time to go."""
    until = time.monotonic() + QUIET
    while True:
        grid.tick()
        try:
            with grid.direct() as client:
                # However large: nobody else is served here.
                checks = audit(client, grid.keys, idle=True, most=sys.maxsize)
        except (GridError, redis.RedisError) as exc:
            checks = [Check("the grid can be audited", (str(exc),))]
        everything_back = all(part.running or part.gone for part in grid.parts.values())
        if (everything_back and not any(check.breaches for check in checks)) or time.monotonic() > until:
            return checks
        time.sleep(0.3)


def celery_says(job: str) -> tuple[str, Any]:
    """What Celery's result backend says of a job."""
    try:
        found = app.AsyncResult(job)
        return str(found.state), None if found.state == PENDING else found.result
    except Exception as exc:  # an answer that cannot be read is a wrong one
        return "UNREADABLE", exc
