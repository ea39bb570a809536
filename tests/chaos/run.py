"""Execute a chaos run: start a grid, run the plan, audit the result, stop the grid. All in bounded time."""

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
from gridq.store.connection import translate_error
from gridq.views import jobs as history
from gridq.views import wait_reasons
from gridq.views.audit import Check, run_audit
from tests.chaos import records, witness
from tests.chaos.agents import Agents, SubmittedJob
from tests.chaos.auditing import Auditor, AuditResult, recovery
from tests.chaos.disturbances import SERVER
from tests.chaos.endpoints.audit import EndpointAudit, audit_endpoints
from tests.chaos.endpoints.clients import Clients
from tests.chaos.faults import FaultInjector
from tests.chaos.grid import GATEWAYS, START_TIMEOUT_SECONDS, ChaosGrid
from tests.chaos.layout import Layout
from tests.chaos.limits import compute_uses, list_overdrawn
from tests.chaos.plan import Plan
from tests.chaos.script_times import BOUND_SECONDS, ScriptTimes, SlowCall

SETTLE_SECONDS = 180.0
"""Time after the last fault in which every job must end."""
QUIET_SECONDS = 30.0
"""Time after that in which their data must be cleaned up."""
REPORT_SECONDS = 10.0
MAX_LISTED_JOBS = 10
"""Number of hanging jobs that are listed."""
MAX_POLLED_JOBS = 2000


@dataclass
class Result:
    """The result of a run. `checks`: every rule with its breaches. `folder`: the logs; None: they were
    deleted.
    """

    plan: Plan
    audit_result: AuditResult
    faults: Counter[str]
    seconds: float
    losses: int
    recovery: dict[str, list[float]]
    deaths: int
    unexpected_ends: list[str] = field(default_factory=list)
    endpoints: EndpointAudit = field(default_factory=EndpointAudit)
    slow_calls: list[SlowCall] = field(default_factory=list)
    """The server's slow calls, longest first."""
    folder: Path | None = None

    @property
    def checks(self) -> list[Check]:
        return self.audit_result.checks

    @property
    def broken(self) -> bool:
        return any(check.breaches for check in self.checks)


@dataclass
class AuditOutcome:
    """The outcome of an audit. `losses`: attempts lost with their worker. `recovery`: see
    `auditing.recovery`.
    """

    audit_result: AuditResult
    losses: int
    recovery: dict[str, list[float]] = field(default_factory=dict)


def audit_by_witness(grid: ChaosGrid, submitted: dict[str, SubmittedJob]) -> AuditOutcome:
    """Compare every run in the witness's file with the grid's records."""
    runs, layout = witness.read(grid.witness), grid.layout
    with grid.direct() as client:
        found = records.read_records(client, grid.keys, submitted)
        ledger = list(entries.read_entries(client, grid.keys))
    config = grid.config(grid.client_proxy, grid.folder / "agents")

    def seats_failed(job: SubmittedJob) -> bool:
        sound = list(layout.endpoints)[-1]
        return grid.disturbances.find([sound, SERVER], job.begun, time.monotonic())

    audit_result = Auditor(found, submitted, runs, config, read_celery_result, seats_failed).run()
    audit_result.uses = compute_uses(layout.limits, ledger, layout.owners, {})
    audit_result.checks.append(
        Check(
            "no limit is exceeded, except by late reports of attempts given up",
            list_overdrawn(audit_result.uses),
        )
    )
    return AuditOutcome(audit_result, found.losses, recovery(runs, grid.deaths, submitted))


def max_run_seconds(seconds: float) -> float:
    """Return the longest duration of a run with faults for `seconds`."""
    return START_TIMEOUT_SECONDS + seconds + SETTLE_SECONDS + QUIET_SECONDS + 120.0


def run(
    plan: Plan,
    *,
    layout: Layout,
    routers: int = 2,
    settle: float = SETTLE_SECONDS,
    audit_jobs: Callable[[ChaosGrid, dict[str, SubmittedJob]], AuditOutcome] | None = None,
    keep: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Result:
    """Start a grid, run the plan on it, audit the result, stop it. Whatever happens, all programs are
    stopped.

    `layout`: the machines and seats. `settle`: seconds after the last fault in which every job must end.
    `audit_jobs`: audits the jobs on the grid at rest; default: `audit_by_witness`. `report`: gets lines about
    faults, the progress and kept logs. ConfigError, StartTimeout, BrokerError: the grid could not be started,
    or its server did not answer at the end.
    """
    folder = Path(tempfile.mkdtemp(prefix="gridq-chaos-"))
    spare = True
    try:
        result = _run(
            plan,
            folder,
            layout,
            audit_jobs or audit_by_witness,
            routers=routers,
            settle=settle,
            report=report,
        )
        spare = keep or result.broken
    except (KeyboardInterrupt, SystemExit):
        spare = keep
        raise
    finally:
        if not spare:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report(f"The logs are in {folder}")
    result.folder = folder if spare else None
    return result


def _run(
    plan: Plan,
    folder: Path,
    layout: Layout,
    audit_jobs: Callable[[ChaosGrid, dict[str, SubmittedJob]], AuditOutcome],
    *,
    routers: int,
    settle: float,
    report: Callable[[str], None],
) -> Result:
    grid = ChaosGrid(folder, layout=layout, routers=routers, report=lambda text: report(f"           {text}"))
    left: list[str] | None = None
    try:
        seats = ", ".join(f"{machine.name}.{seat}" for machine in layout.machines for seat in machine.seats)
        report(f"Starting a server, {routers} routers, {GATEWAYS} gateways and the seats {seats} ...")
        grid.start()
        agents = Agents(plan, grid.config(grid.client_proxy, folder / "agents"), grid.urls)
        clients = Clients(plan.requests, grid.urls.split(","))
        attacker = FaultInjector(grid, plan.faults, report)
        began = time.monotonic()
        watch = _ProgressWatch(grid, agents, clients, report)
        try:
            agents.start()
            clients.start()
            _attack(plan, grid, attacker, watch, began)
            attacker.end()
            report("The faults are over. Waiting for the jobs to end ...")
            hung = _settle(grid, watch, settle)
            left_over = _quiet(grid)
        finally:
            watch.close()
            agents.stop()
            clients.stop()
        seconds = time.monotonic() - began
        outcome = audit_jobs(grid, agents.submitted)
        endpoints = EndpointAudit()
        if layout.endpoints:
            endpoints = audit_endpoints(grid, agents.submitted, clients.replies)
        disconnect()
        left = grid.stop()
        checks = outcome.audit_result.checks
        checks.insert(0, Check("every job ends once the faults are over", tuple(hung)))
        checks += endpoints.checks
        slow = watch.script_times.select(grid.disturbances.suspensions)
        late = tuple(
            f"{call.name} took {call.seconds:.2f} s" for call in slow if call.seconds > BOUND_SECONDS
        )
        checks.append(Check(f"no call keeps the server busy for more than {BOUND_SECONDS:g} s", late))
        checks += left_over
        checks.append(Check("every program stops after SIGTERM", (*grid.late_ends, *left)))
        return Result(
            plan, outcome.audit_result, attacker.counts, seconds, outcome.losses,
            outcome.recovery, len(grid.deaths), grid.unexpected_ends, endpoints, slow,
        )  # fmt: skip
    except RedisError as exc:
        raise translate_error(exc, grid.server.url) from exc
    finally:
        if left is None:
            disconnect()
            grid.stop()


class _ProgressWatch:
    """The progress of the jobs, read through a separate connection."""

    def __init__(
        self, grid: ChaosGrid, agents: Agents, clients: Clients, report: Callable[[str], None]
    ) -> None:
        self.grid = grid
        self.agents = agents
        self.clients = clients
        self.report = report
        self.open = list(agents.submitted)
        self._client = grid.direct()
        self.script_times = ScriptTimes(self._client, grid.config(grid.client_proxy, grid.folder / "agents"))
        self._due = 0.0
        self._told = time.monotonic()

    def tick(self) -> None:
        """Read twice a second which jobs have ended, and report it every ten seconds."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + 0.5
        try:
            ended = self._ended(self.open[:MAX_POLLED_JOBS])
            self.script_times.collect(self._client)
        except (RedisError, OSError):
            return
        self.open = [job for job in self.open if job not in ended]
        if now - self._told >= REPORT_SECONDS:
            self._told = now
            total = len(self.agents.submitted)
            known = sum(state.accepted for state in self.agents.submitted.values())
            self.report(f"{now - self.agents.began:7.1f} s  {total - len(self.open)} of {total} jobs ended, "
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


def _attack(
    plan: Plan, grid: ChaosGrid, attacker: FaultInjector, watch: _ProgressWatch, began: float
) -> None:
    while (elapsed := time.monotonic() - began) < plan.seconds:
        attacker.tick(elapsed)
        grid.tick()
        watch.tick()
        time.sleep(0.05)


def _settle(grid: ChaosGrid, watch: _ProgressWatch, settle: float) -> list[str]:
    """Wait until all jobs have ended. Return a sentence for each that has not."""
    until = time.monotonic() + settle
    while watch.open or watch.agents.busy or watch.clients.busy:
        grid.tick()
        watch.tick()
        if time.monotonic() > until:
            return _hung(grid, watch)
        time.sleep(0.05)
    return []


def _hung(grid: ChaosGrid, watch: _ProgressWatch) -> list[str]:
    lines = []
    with grid.direct() as client:
        for job in watch.open[:MAX_LISTED_JOBS]:
            view = history.JobReader(client, grid.keys, job).read(rows=False)
            why = (
                wait_reasons.explain_wait(client, grid.keys, view)
                if view.state is not None
                else "it is not known"
            )
            lines.append(f"{job} has not ended: {why}")
    if len(watch.open) > MAX_LISTED_JOBS:
        lines.append(f"and {len(watch.open) - MAX_LISTED_JOBS} more jobs")
    if watch.agents.busy:
        lines.append(f"{watch.agents.busy} calls of agents are not answered")
    if watch.clients.busy:
        lines.append(f"{watch.clients.busy} requests to gateways are not answered")
    return lines


def _quiet(grid: ChaosGrid) -> list[Check]:
    """Return the checks of the grid at rest, after a time for the clean-up."""
    until = time.monotonic() + QUIET_SECONDS
    while True:
        grid.tick()
        try:
            with grid.direct() as client:
                # Without a limit: no other client uses this server.
                checks = run_audit(client, grid.keys, idle=True, max_items=sys.maxsize)
        except (GridError, redis.RedisError) as exc:
            checks = [Check("the grid can be audited", (str(exc),))]
        everything_back = all(part.running or part.gone for part in grid.parts.values())
        if (everything_back and not any(check.breaches for check in checks)) or time.monotonic() > until:
            return checks
        time.sleep(0.3)


def read_celery_result(job: str) -> tuple[str, Any]:
    """Return the state and the result of a job from Celery's result backend."""
    try:
        found = app.AsyncResult(job)
        return str(found.state), None if found.state == PENDING else found.result
    except Exception as exc:  # an unreadable answer is a wrong one
        return "UNREADABLE", exc
