"""The audit after a run: the outcome of each job, the records of each attempt, and every sum."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gridq.config.settings import Settings
from gridq.errors import GridError
from gridq.graph.plan import Step
from gridq.limits.ledger import RECORDED, Entry
from gridq.protocol.models import HistoryRow
from gridq.protocol.states import JobState
from gridq.views.audit import Check
from tests.chaos.agents import SubmittedJob
from tests.chaos.endpoints.audit import OF_SEATS
from tests.chaos.limits import Use
from tests.chaos.plan import Job
from tests.chaos.records import GridRecords, JobRecord, PlanCompiler
from tests.chaos.witness import Run, tokens

EXHAUSTED = "stage.attempts_exhausted"
CUT = "stage.stream_cut"
WAIT_CLASSES = ("interactive", "batch", "poor")


@dataclass(slots=True)
class AuditResult:
    """The rules, each with its breaches, and the sums for the report."""

    checks: list[Check] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    extra_runs: int = 0
    recorded: int = 0
    unrecorded: int = 0
    """Number of attempts that were not recorded."""
    codes: Counter[str] = field(default_factory=Counter)
    uses: list[Use] = field(default_factory=list)
    """The use of each limit."""


class Auditor:
    """Audits one run. `answer(job)` returns Celery's result of a job: (state, value or error).

    `seats_failed(job)` returns whether a fault explains that no seat could answer the job's model calls.
    """

    def __init__(
        self,
        grid_records: GridRecords,
        submitted: dict[str, SubmittedJob],
        runs: list[Run],
        config: Settings,
        answer: Callable[[str], tuple[str, Any]],
        seats_failed: Callable[[SubmittedJob], bool] = lambda job: False,
    ) -> None:
        self.grid_records = grid_records
        self.submitted = submitted
        self.config = config
        self.answer = answer
        self.seats_failed = seats_failed
        self.audit_result = AuditResult(runs=len(runs))
        self.runs: dict[str, list[Run]] = defaultdict(list)
        for run in runs:
            self.runs[run.job].append(run)
        plans = PlanCompiler(config)
        self.steps = {job: plans.steps(state.job.made.graph) for job, state in submitted.items()}

    def run(self) -> AuditResult:
        """Apply every rule."""
        rules: list[tuple[str, Callable[[SubmittedJob, JobRecord], list[str]]]] = [
            ("each job has one final state, and it is the right one", self._check_end),
            ("Celery's result backend has the same result", self._check_celery),
            ("gateways returned the same result to waiting clients", self._check_gateway),
            ("each stage's effect is recorded once", self._check_recorded_once),
            ("each attempt is either recorded or unrecorded", self._check_attempts),
            ("each run belongs to one attempt, each extra run to an unrecorded one", self._check_runs),
            ("the ledger has the use of each attempt, to the micro-dollar and token the witness saw",
             self._check_ledger),
        ]  # fmt: skip
        for name, rule in rules:
            found = [
                line
                for job, state in self.submitted.items()
                for line in rule(state, self.grid_records.records[job])
            ]
            self.audit_result.checks.append(Check(name, tuple(found)))
        self.audit_result.checks.append(
            Check("agents have spent what was recorded", tuple(self._check_agents()))
        )
        self.audit_result.checks.append(
            Check("seats are charged what was recorded, and what was wasted", tuple(self._check_seats()))
        )
        self.audit_result.checks.append(
            Check("every counter equals the sum of the ledger", tuple(self._check_counters()))
        )
        return self.audit_result

    # -- jobs

    def _check_end(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        job = state.job
        wrong = list(state.wrong)
        if not state.accepted:
            self.audit_result.states["refused" if state.refused else "not submitted"] += 1
            if record.ends:
                wrong.append(f"{job.id} was refused and has ended {record.state}")
            return wrong + ([] if state.refused else [f"{job.id} was not submitted in time"])
        self.audit_result.states[str(record.state or "lost")] += 1
        if record.ends != 1:
            return [*wrong, f"{job.id} has {record.ends} final states"]
        return wrong + self._explain_end(state, record)

    def _explain_end(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        """Return why the result of a job is not an allowed one."""
        job = state.job
        expected = job.made.outcome
        if record.error is None:
            if expected.errors:
                return [
                    f"{job.id} should have failed by {dict(expected.errors)}, it gave {record.value!r:.80}"
                ]
            if record.value != expected.value:
                return [f"{job.id} should have given {expected.value!r:.80}, it gave {record.value!r:.80}"]
            return []
        code, path = record.error.code, str(record.error.details.get("path"))
        self.audit_result.codes[code] += 1
        if code in job.allowed_errors or (path in expected.errors and expected.errors[path] == code):
            return []
        if code == CUT and job.options.get("stream") and any(record.lost.values()):
            return []
        if code in OF_SEATS and path in job.made.asked.values() and self.seats_failed(state):
            return []
        losses = max((len(attempts) for attempts in record.lost.values()), default=0)
        if code == EXHAUSTED and losses >= self.config.max_losses:
            return []
        return [f"{job.id} ended by {code} at {path}: {record.error}, which nothing explains"]

    def _check_celery(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        if not (state.accepted and state.job.channel == "celery" and record.ends):
            return []
        state_name, result = self.answer(state.job.id)
        if record.error is None:
            right = state_name == "SUCCESS" and result == record.value
        else:
            right = state_name in ("FAILURE", "REVOKED") and (
                not isinstance(result, GridError) or result.code == record.error.code
            )
        return [] if right else [f"{state.job.id} is {record.state}, Celery says {state_name} {result!r:.80}"]

    def _check_gateway(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        if not (state.accepted and state.job.channel == "gateway" and record.ends):
            return []
        if state.answer is None:
            return [f"{state.job.id} is {record.state}, and no gateway has said so"]
        value, error = state.answer
        given = (value, error and error.code)
        right = given == (record.value, record.error and record.error.code)
        return [] if right else [f"{state.job.id} is {record.state}, a gateway says {error or value!r:.80}"]

    # -- stages

    def _check_recorded_once(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        job = state.job.id
        twice = Counter((row.path, row.attempt) for row in record.rows)
        wrong = [
            f"{job}: {path} attempt {number} has {n} rows" for (path, number), n in twice.items() if n > 1
        ]
        for number, step in enumerate(self.steps[job]):
            if not step.ops:
                continue
            times = len(record.recorded(number, step.ops[0].path))
            self.audit_result.recorded += times
            if times > 1 and step.scope is None:
                wrong.append(f"{job}: {step.path} is recorded {times} times")
            if times == 0 and record.state is JobState.DONE and step.guard is None:
                wrong.append(f"{job} is done and {step.path} is not recorded")
        return wrong

    def _check_attempts(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        job = state.job.id
        wrong = []
        for number, step in enumerate(self.steps[job]):
            lost = set(record.lost.get(number, {}))
            self.audit_result.unrecorded += len(lost)
            wrong += [
                f"{job}: attempt {row.attempt} of {row.path} is both recorded and unrecorded"
                for row in record.rows
                if len(step.ops) == 1 and row.path == step.ops[0].path
                if row.attempt in lost and row.state == "done"
            ]
            if step.ops:  # steps without stages have no history
                known = lost | set(record.recorded(number, step.ops[0].path))
                missing = sorted(set(range(1, max(known, default=0) + 1)) - known)
                wrong += [f"{job}: nothing is known of attempt {each} of {step.path}" for each in missing]
        return wrong

    def _check_runs(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        job = state.job
        number = {op.path: (n, step) for n, step in enumerate(self.steps[job.id]) for op in step.ops}
        wrong = []
        seen: dict[int, Counter[int]] = defaultdict(Counter)
        for run in self.runs[job.id]:
            step, _ = number[job.made.stages[run.stage]]
            seen[step][run.attempt] += 1
        witnessed: dict[int, Step] = {number[path][0]: number[path][1] for path in job.made.stages.values()}
        for step, found in witnessed.items():
            recorded = set(record.recorded(step, found.ops[0].path))
            lost = set(record.lost.get(step, {}))
            for attempt, times in seen[step].items():
                self.audit_result.extra_runs += times - (attempt in recorded)
                if times > 1:
                    wrong.append(f"{job.id}: attempt {attempt} of {found.path} ran {times} times")
                if attempt not in recorded | lost:
                    wrong.append(
                        f"{job.id}: {found.path} ran as attempt {attempt}, of which nothing is known"
                    )
            wrong += [
                f"{job.id}: attempt {attempt} of {found.path} is recorded and was never run"
                for attempt in sorted(recorded - seen[step].keys())
            ]
        return wrong

    # -- money

    def _check_ledger(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        job = state.job.id
        number = {op.path: n for n, step in enumerate(self.steps[job]) for op in step.ops}
        spent: Counter[tuple[int, int]] = Counter()
        for run in self.runs[job]:
            spent[number[state.job.made.stages[run.stage]], run.attempt] += run.spend
        wrong = []
        asked = frozenset(state.job.made.asked.values())
        for n, step in enumerate(self.steps[job]):
            if any(op.path in asked for op in step.ops):  # its witness is the endpoint
                continue
            recorded = set(record.recorded(n, step.ops[0].path)) if step.ops else set()
            lost, entries = record.lost.get(n, {}), record.entries.get(n, {})
            for attempt in sorted(recorded | lost.keys() | entries.keys()):
                found = entries.get(attempt, [])
                used = sum(entry.micro_dollars or 0 for entry in found)
                done = [entry.micro_dollars for entry in found if entry.what == RECORDED]
                seen = spent[n, attempt]
                counted = tuple(
                    map(sum, zip(*((each.tokens_in, each.tokens_out) for each in found), strict=True))
                )
                where = f"{job}: attempt {attempt} of {step.path}"
                if attempt in recorded:
                    if used != seen or (done != [seen] and not (costless(step) and not seen)):
                        wrong.append(f"{where} used {seen}, entered are {used}, recorded {done}")
                elif used not in (0, seen) or done or used != lost.get(attempt, ("", 0))[1]:
                    wrong.append(f"{where} is unrecorded and used {seen}, entered are {used}, {done}")
                if found and counted != tokens(used):
                    wrong.append(f"{where} used {seen}, entered are {counted} tokens")
                requests = sum(entry.requests for entry in found)
                if found and not costless(step) and requests != _count_requests(found[0]):
                    wrong.append(f"{where} is {requests} requests")
                if not found and not costless(step):
                    wrong.append(f"{where} has no entry")
        return wrong

    def _check_counters(self) -> list[str]:
        found = self.grid_records.verified
        lines = [f"{each.counter}: {each.counted}, recorded {each.recorded}" for each in found.differences]
        return [*lines, *found.notes]

    def _check_agents(self) -> list[str]:
        used: Counter[str] = Counter()
        jobs: Counter[str] = Counter()
        for job, state in self.submitted.items():
            record, agent = self.grid_records.records[job], str(state.job.options["agent"])
            jobs[agent] += record.admitted
            for row in self._list_recorded_rows(job, record):
                used[agent] += row.micro_dollars or 0
        spent = self.grid_records.spent
        wrong = []
        for agent in sorted(jobs):
            if spent.get(f"money a:{agent}", 0) != used[agent]:
                wrong.append(
                    f"{agent} has spent {spent.get(f'money a:{agent}', 0)}, recorded are {used[agent]}"
                )
            if spent.get(f"jobs a:{agent}", 0) != jobs[agent]:
                wrong.append(
                    f"{agent} has {spent.get(f'jobs a:{agent}', 0)} jobs, admitted are {jobs[agent]}"
                )
        return wrong

    def _check_seats(self) -> list[str]:
        used = self._sum_seats()
        return [
            f"{seat} is charged {charged}, recorded and wasted are {used[seat]}"
            for seat, charged in sorted(self.grid_records.charged.items())
            if charged != used[seat]
        ]

    def _sum_seats(self) -> Counter[str]:
        """Return the use of each seat, from history rows and charges."""
        used: Counter[str] = Counter()
        for job, record in self.grid_records.records.items():
            for row in self._list_recorded_rows(job, record):
                seat, _, machine = row.worker.partition("@")
                used[f"{machine}.{seat}"] += row.micro_dollars or 0
            for attempts in record.lost.values():
                for seat, charged in attempts.values():
                    used[seat] += charged
        return used

    def _list_recorded_rows(self, job: str, record: JobRecord) -> list[HistoryRow]:
        """Return the rows of recorded attempts."""
        number = {op.path: n for n, step in enumerate(self.steps[job]) for op in step.ops}
        return [row for row in record.rows if row.attempt not in record.lost.get(number[row.path], {})]


def _count_requests(first: Entry) -> int:
    """Return the number of requests of an attempt, by its first entry: none if it was handed back unused."""
    return int(first.used or first.what != "back")


def costless(step: Step) -> bool:
    """Return whether the ledger omits attempts of the step that used nothing: built-in and Python stages."""
    return step.queue.startswith("gridq:")


def wait_class(job: Job) -> str:
    """Return the class of a job's waits: stages of `batch` jobs wait for interactive ones, those of the agent
    `poor` for money too.
    """
    if job.options["agent"] == "poor":
        return "poor"
    return str(job.options.get("priority", "interactive"))


def recovery(
    runs: list[Run], deaths: list[tuple[int, int]], jobs: Mapping[str, SubmittedJob]
) -> dict[str, list[float]]:
    """Seconds from the death of each program to the next run of each stage that it was running, by the
    `standing` of its job.
    """
    starts: dict[tuple[str, str], list[int]] = defaultdict(list)
    by_pid: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        starts[run.job, run.stage].append(run.begun)
        by_pid[run.pid].append(run)
    found: dict[str, list[float]] = {name: [] for name in WAIT_CLASSES}
    for at, pid in deaths:
        for run in by_pid[pid]:
            if run.begun <= at and not run.ended:
                after = [begun for begun in starts[run.job, run.stage] if begun > at]
                if after:
                    found[wait_class(jobs[run.job].job)].append((min(after) - at) / 1000)
    return {name: sorted(times) for name, times in found.items()}
