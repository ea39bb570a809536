"""Let three machines share work under budgets, and check that the ledger equals their vendors' invoices.

`python -m tests.acceptance.three_machines --stages 10000` is the full run, and `--faults all` adds the chaos
plan. A small run is a test (`test_three_machines.py`). Each machine has a home folder with its own
seats.toml, and a worker for each seat: API keys and vendors' programs (`machines.SEATS`). The vendors are a
process outside the grid (`vendors`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gridq.errors import GridError
from gridq.graph.nodes import child_path
from gridq.limits import ledger as entries
from gridq.protocol.models import Json
from gridq.views.audit import Check
from tests.acceptance.homes import GRIDQ
from tests.acceptance.invoices import Invoices
from tests.acceptance.machines import (
    AGENTS,
    DECLARED,
    ESTIMATED,
    FAMILIES,
    MAX_TOKENS,
    SEATS,
    Bound,
    bounds,
    layout,
)
from tests.acceptance.vendors import answer, make_system_text, read
from tests.chaos import records
from tests.chaos.agents import SubmittedJob
from tests.chaos.graphs import JOB, ExpectedOutcome, GeneratedGraph, GraphGenerator, Node
from tests.chaos.grid import ChaosGrid
from tests.chaos.plan import (
    Fault,
    Job,
    Plan,
    address,
    choose_channel,
    limit_agent,
    make_faults,
    make_job,
    parse_faults,
)
from tests.chaos.run import SETTLE_SECONDS, AuditOutcome, Result, read_celery_result, run

STAGES_PER_SECOND = 25
"""Stages submitted a second."""
MIN_STAGES_PER_SECOND = 20
"""The lowest throughput without faults, in stages a second, even on shared cores."""
MAX_FAULT_SECONDS = 9.0
"""The longest duration of a fault, in seconds."""
SORTS = {
    "plain": 58,
    "failing": 8,
    "cancelled": 8,
    "late": 4,
    "poor": 8,
    "cat": 6,
    "thrifty": 8,
    "streamed": 6,
}
COUNTED = ("recorded", "tokens_in", "tokens_out")


class PaidMaker(GraphGenerator):
    """Generates graphs whose stages each call a model, with the expected answer.

    `undeclared` is the probability that a stage does not declare its cost.
    """

    undeclared = 0.0

    def stage(self, value: Any, path: str, **orders: Json) -> tuple[Node, ExpectedOutcome]:
        chance = self.chance
        name = f"s{len(self._stages)}"
        self._stages[name] = child_path(path, "stages", 1)
        ms = chance.choices([0, chance.randint(5, 60), chance.randint(100, 400), 1500], [4, 5, 2, 1])[0]
        orders = {"ms": ms * (5 if self._slow else 1), **orders}
        if not orders.get("flaky") and chance.random() < 0.03:
            orders[chance.choice(["away", "cut"])] = 1
        fails = chance.random() < self._failing
        if fails:
            orders["fail"] = True
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        family = chance.choices(list(FAMILIES), list(FAMILIES.values()))[0]
        model = family[0] if len(family) == 1 else list(family)
        config = {"model": model, "system": make_system_text(JOB, name, orders), "max_tokens": MAX_TOKENS}
        free = not (self.tight or self._spends) and chance.random() < self.undeclared
        asking = {"op": "Stage", "id": ESTIMATED if free else DECLARED, "config": config}
        node = {"op": "Sequential", "stages": [{"op": "Stage", "id": "format_json"}, asking]}
        errors = {self._stages[name]: "stage.failed"} if fails else {}
        return node, ExpectedOutcome(errors=errors) if errors else ExpectedOutcome(answer(name, text))

    def branch(self, value: Any, path: str, depth: int) -> tuple[Node, ExpectedOutcome]:
        """Return a sequence instead, because no model answers true or false."""
        return self.sequence(value, path, 2, depth)


def make(stages: int, seed: int, seconds: float, faults: list[Fault], undeclared: float = 0.0) -> Plan:
    """Return a plan with jobs of at least `stages` stages over `seconds`, and these faults."""
    chance = random.Random(f"money {seed}")
    maker = PaidMaker(chance)
    maker.undeclared = undeclared
    drafts: list[tuple[str, GeneratedGraph, int]] = []
    total = 0
    while total < stages:
        sort = chance.choices(list(SORTS), list(SORTS.values()))[0]
        maker.tight = sort in AGENTS
        made = maker.generate(
            failing=0.12 if sort == "failing" else 0.0,
            paid=sort == "poor",
            slow=sort in ("cancelled", "late"),
            streamed=sort == "streamed",
        )
        if made.stages:
            drafts.append((sort, made, total))
            total += len(made.stages)
    jobs = [_job(chance, sort, made, seconds * before / total) for sort, made, before in drafts]
    return Plan(seed, seconds, jobs, faults)


def _job(chance: random.Random, sort: str, made: GeneratedGraph, at: float) -> Job:
    job = choose_channel(chance, make_job(chance, "plain" if sort in AGENTS else sort, made, at))
    return address(limit_agent(job, sort) if sort in AGENTS else job)


@contextlib.contextmanager
def vendors(witness: Path) -> Iterator[str]:
    """Run the vendors as a process; yield their URL."""
    seats = {seat.id: (seat.api, seat.price and asdict(seat.price)) for seat in SEATS}
    command = [sys.executable, "-m", "tests.acceptance.vendors", str(witness), json.dumps(seats)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdin is not None
    try:
        yield program.stdout.readline().strip()
    finally:
        program.stdin.close()
        program.wait(30)
        program.stdout.close()


@dataclass
class Closing:
    """The result of a run, and the audit of its money."""

    result: Result
    invoices: Invoices

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        audit_result = self.result.audit_result
        money = self.invoices
        return {
            "seed": self.result.plan.seed,
            "seconds": round(self.result.seconds, 1),
            "jobs": dict(audit_result.states),
            "errors": dict(audit_result.codes),
            "stages": self.result.plan.stages,
            "recorded": audit_result.recorded,
            "calls": audit_result.runs,
            "entries": len(money.all_entries),
            "paid_micro_dollars": sum(each.paid["micro"] for each in money.accounts.values()),
            "unknown_calls": len(money.differences),
            "unknown_micro_dollars": sum(each.micro for each in money.differences),
            "unknown": dict(Counter(each.what for each in money.differences)),
            "attempts_without_result": audit_result.unrecorded,
            "losses": self.result.losses,
            "faults": dict(self.result.faults),
            "killed": self.result.deaths,
            "unexpected_ends": self.result.unexpected_ends,
            "seats": {
                seat: {
                    "paid": dict(each.paid),
                    "entered": dict(each.entered),
                    "unknown": dict(each.unknown),
                    "recorded": each.recorded,
                    "refused": each.refused,
                }
                for seat, each in sorted(money.accounts.items())
            },
            "limits": [use.to_json() for use in money.uses],
            "broken": [
                {"rule": check.rule, "breaches": list(check.breaches[:10])}
                for check in self.result.checks
                if check.breaches
            ],
            "logs": None if self.result.folder is None else str(self.result.folder),
        }  # fmt: skip


def closing(
    plan: Plan,
    limits: tuple[Bound, ...],
    *,
    routers: int = 2,
    keep: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Closing:
    """Run the plan on the three machines, and compare the ledger with the invoices."""
    with tempfile.TemporaryDirectory(prefix="gridq-machines-") as text:
        folder = Path(text)
        witness = folder / "witness"
        found: list[Invoices] = []

        def audit_jobs(grid: ChaosGrid, submitted: dict[str, SubmittedJob]) -> AuditOutcome:
            calls = read(witness)
            with grid.direct() as client:
                grid_records = records.read_records(client, grid.keys, submitted)
                ledger = list(entries.read_entries(client, grid.keys))
            config = grid.config(grid.client_proxy, grid.folder / "agents")
            invoices = Invoices(grid_records, submitted, ledger, calls, config, read_celery_result)
            audit_result = invoices.audit_all(limits)
            audit_result.checks.append(
                Check("the commands agree with the ledger", tuple(_commands(grid, invoices)))
            )
            found.append(invoices)
            return AuditOutcome(audit_result, grid_records.losses)

        with vendors(witness) as url:
            machines = layout(folder, url, limits)
            result = run(
                plan,
                layout=machines,
                routers=routers,
                settle=max(SETTLE_SECONDS, plan.stages / MIN_STAGES_PER_SECOND),
                audit_jobs=audit_jobs,
                keep=keep,
                report=report,
            )
        return Closing(result, found[0])


def _commands(grid: ChaosGrid, money: Invoices) -> Iterator[str]:
    """Yield the differences between the ledger and `gridq ledger`, `gridq seat log` and `gridq report`."""

    def run_command(machine: str, *arguments: str) -> str:
        env = {
            "GRIDQ_BROKER_URL": grid.server.url,
            "GRIDQ_PREFIX": grid.prefix,
            "GRIDQ_HOME": str(grid.home(machine)),
            "GRIDQ_QUOTAS": str(grid.quotas),
            "GRIDQ_PROFILES": "llm",
        }
        done = subprocess.run(
            [*GRIDQ, *arguments], capture_output=True, text=True, env=env, timeout=120, check=False
        )
        return done.stdout if done.returncode == 0 else f'{{"failed": {json.dumps(done.stderr)}}}'

    verified = json.loads(run_command("m1", "ledger", "verify", "--json"))
    if verified.get("differences") != [] or verified.get("entries") != len(money.all_entries):
        yield f"gridq ledger verify: {verified}, of {len(money.all_entries)} entries"
    lines = run_command("m2", "ledger", "export").splitlines()
    if [json.loads(line) for line in lines] != [entry.to_json() for entry in money.all_entries]:
        yield f"gridq ledger export has {len(lines)} lines, the ledger {len(money.all_entries)} entries"
    report = {
        each["seat"]: each for each in json.loads(run_command("m3", "report", "--json")).get("seats", [])
    }
    for machine in dict.fromkeys(seat.machine for seat in SEATS):
        accounts = {seat: each for seat, each in money.accounts.items() if seat.startswith(f"{machine}.")}
        log = json.loads(run_command(machine, "seat", "log", "--json", "--limit", "10000"))
        known = [report.get(seat, {}) for seat in accounts]
        for what, by in ("gridq seat log", [log]), ("gridq report", known):
            reported = [sum(each.get(name) or 0 for each in by) for name in ("used", "wasted", *COUNTED)]
            has = sum((each.entered for each in accounts.values()), Counter())
            recorded = sum(each.recorded for each in accounts.values())
            if [reported[0] + reported[1], *reported[2:]] != [
                has["micro"],
                recorded,
                has["tokens_in"],
                has["tokens_out"],
            ]:
                yield f"{what} reports {reported} for {machine}, the ledger {dict(has)}, {recorded} recorded"


def main(arguments: list[str]) -> int:
    """Run the test and print the figures as JSON. Return 1 if a rule is broken, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.three_machines", description=__doc__)
    parser.add_argument("--stages", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--faults", default="none", help="all, none, or names, as for gridq chaos")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two faults, on average")
    parser.add_argument("--a-second", type=float, default=STAGES_PER_SECOND, help="stages submitted a second")
    parser.add_argument(
        "--undeclared", type=float, default=0.0, help="share of stages that do not declare their cost"
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs even if the run succeeds")
    options = parser.parse_args(arguments)
    try:
        faults = parse_faults(options.faults)
    except GridError as exc:
        parser.error(str(exc))
    seconds = options.stages / options.a_second
    # No seat stays down for good, so that the budgets of each are exercised.
    planned = make_faults(options.seed, seconds, faults, options.every)
    planned = [replace(fault, seconds=min(fault.seconds, MAX_FAULT_SECONDS)) for fault in planned]
    plan = make(options.stages, options.seed, seconds, planned, options.undeclared)
    done = closing(
        plan,
        bounds(options.stages),
        keep=options.keep,
        report=lambda text: print(text, file=sys.stderr),
    )
    print(json.dumps(done.to_json(), indent=1))
    return int(done.result.broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
