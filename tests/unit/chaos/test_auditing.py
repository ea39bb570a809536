"""The audit after a chaos run finds what is wrong: a good run's books are spoilt in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gridq.config.settings import Settings
from gridq.errors import AttemptsExhausted, DeadlineExceeded, JobCancelled, StageError
from gridq.limits.ledger import Entry
from gridq.limits.ledger_verification import Difference, Verification
from gridq.protocol.models import HistoryRow
from gridq.protocol.states import JobState
from tests.chaos.agents import SubmittedJob
from tests.chaos.auditing import Auditor, AuditResult, recovery
from tests.chaos.graphs import ExpectedOutcome, GeneratedGraph
from tests.chaos.plan import Job
from tests.chaos.profile import PROFILE
from tests.chaos.records import GridRecords, JobRecord
from tests.chaos.witness import ORDERS, Run, tokens

CONFIG = Settings(profiles=(PROFILE,), stages=("tests.chaos.stages",))


class Case:
    """A job of two stages, one after the other; the second was lost once, and what it used then is waste."""

    def __init__(self) -> None:
        stages = [
            {"op": "Stage", "id": "chaos_seat", "config": {ORDERS: {"id": name}}} for name in ("s0", "s1")
        ]
        graph: Any = {
            "description": "x",
            "version": "0.1.0",
            "root": {"op": "Sequential", "stages": stages},
        }
        self.paths = {"s0": "root.stages[0]", "s1": "root.stages[1]"}
        made = GeneratedGraph(graph, None, ExpectedOutcome("right"), self.paths)
        self.state = SubmittedJob(Job("j", made, {"agent": "ann"}, 0.0, channel="celery"), accepted=True)
        self.record = JobRecord(JobState.DONE, "right", None, 1, True)
        self.record.rows = [self.row("s0", 1), self.row("s1", 2)]
        self.record.lost[1] = {1: ("m1.bench", 30)}
        self.enter(0, 1, "done", 100)
        self.enter(1, 1, "lost", None)
        self.enter(1, 1, "late", 30)
        self.enter(1, 2, "done", 100)
        spent = {"money a:ann": 200, "jobs a:ann": 1}
        self.grid_records = GridRecords(
            {"j": self.record}, spent, {"m1.bench": 230}, 1, Verification((), (), 5, 3, "5-0")
        )
        self.runs = [
            Run("j", "s0", 1, 7, 10, 20, spend=100),
            Run("j", "s1", 1, 7, 30, spend=30),
            Run("j", "s1", 2, 8, 3030, 3040, spend=100),
        ]
        self.celery: tuple[str, Any] = ("SUCCESS", "right")

    def row(self, stage: str, attempt: int, state: str = "done") -> HistoryRow:
        return HistoryRow(
            path=self.paths[stage], stage="chaos_seat", queue="bench:any", worker="bench@m1", attempt=attempt,
            state=state, micro_dollars=100,
        )  # fmt: skip

    def enter(self, step: int, attempt: int, what: str, micro: int | None) -> None:
        used = tokens(micro or 0)
        first = not self.record.entries[step][attempt]
        entry = Entry(
            "1-1", 1, what, "j", step, attempt, "m1.bench", "ann", "", "", micro, *used, requests=int(first)
        )
        self.record.entries[step][attempt].append(entry)

    def audit_result(self) -> AuditResult:
        auditor = Auditor(self.grid_records, {"j": self.state}, self.runs, CONFIG, lambda job: self.celery)
        return auditor.run()

    def find_breaches(self) -> list[str]:
        return [line for check in self.audit_result().checks for line in check.breaches]

    def end(self, state: JobState, error: Any, *allowed_errors: str) -> None:
        """The job ended otherwise, and may end by `may`."""
        old = self.state.job
        self.state.job = Job(
            "j", old.made, old.options, 0.0, channel="celery", allowed_errors=frozenset(allowed_errors)
        )
        self.record.state, self.record.error, self.record.value = state, error, None
        self.celery = ("FAILURE", error)


def test_consistent_records_have_no_breaches() -> None:
    case = Case()
    assert case.find_breaches() == []
    audit_result = case.audit_result()
    assert (audit_result.runs, audit_result.extra_runs, audit_result.recorded, audit_result.unrecorded) == (
        3,
        1,
        2,
        1,
    )


def test_an_attempt_that_never_ran_is_no_breach() -> None:
    case = Case()
    del case.runs[1]
    case.record.lost[1] = {1: ("m1.bench", 0)}
    case.record.entries[1][1].pop()
    case.grid_records.charged["m1.bench"] = 200
    assert case.find_breaches() == []


def test_a_stage_returned_unused_is_no_request() -> None:
    case = Case()
    case.record.lost[1] = {1: ("m1.bench", 0)}
    case.runs[1] = replace(case.runs[1], spend=0)
    case.grid_records.charged["m1.bench"] = 200
    case.record.entries[1][1] = [Entry("1-1", 1, "back", "j", 1, 1, "m1.bench", "ann", micro_dollars=0)]
    assert case.find_breaches() == []
    case.record.entries[1][1] = [replace(case.record.entries[1][1][0], what="seat")]
    assert "is 0 requests" in " ".join(case.find_breaches())


def by_gateway(case: Case, answer: tuple[Any, Any] | None) -> Case:
    """The job was waited for at a gateway, which gave this value or error."""
    case.state.job = replace(case.state.job, channel="gateway")
    case.state.answer = answer
    return case


def test_a_gateways_answer_must_equal_the_recorded_result() -> None:
    assert by_gateway(Case(), ("right", None)).find_breaches() == []
    case = Case()
    case.end(JobState.CANCELLED, JobCancelled("so"), "job.cancelled")
    assert by_gateway(case, (None, JobCancelled("so"))).find_breaches() == []
    assert "a gateway says" in by_gateway(case, (None, DeadlineExceeded("late"))).find_breaches()[0]
    assert "a gateway says" in by_gateway(case, ("right", None)).find_breaches()[0]


def set_reply(state: SubmittedJob, *, accepted: bool, refused: str) -> None:
    state.accepted, state.refused = accepted, refused


def change_entry(case: Case) -> Callable[..., None]:
    """The first attempt's entry says otherwise."""
    (entry,) = case.record.entries[0][1]
    return lambda **changes: case.record.entries[0].update({1: [replace(entry, **changes)]})


SPOILT: dict[str, Callable[[Case], object]] = {
    "has 0 final states": lambda case: setattr(case.record, "ends", 0),
    "has 2 final states": lambda case: setattr(case.record, "ends", 2),
    "should have given 'right'": lambda case: setattr(case.record, "value", "wrong"),
    "which nothing explains": lambda case: case.end(JobState.FAILED, StageError("no", {"path": "root"})),
    "by job.deadline": lambda case: case.end(JobState.EXPIRED, DeadlineExceeded("late"), "job.cancelled"),
    "by stage.attempts_exhausted": lambda case: case.end(
        JobState.FAILED, AttemptsExhausted("too few losses")
    ),
    "Celery says PENDING": lambda case: setattr(case, "celery", ("PENDING", None)),
    "Celery says SUCCESS": lambda case: setattr(case, "celery", ("SUCCESS", "wrong")),
    "no gateway has said so": lambda case: by_gateway(case, None),
    "a gateway says 'wrong'": lambda case: by_gateway(case, ("wrong", None)),
    "a gateway says StageError": lambda case: by_gateway(case, (None, StageError("no"))),
    "was refused and has ended": lambda case: set_reply(
        case.state, accepted=False, refused="quota.agent_money"
    ),
    "was not submitted": lambda case: setattr(case.state, "accepted", False),
    "a wrong answer to a call": lambda case: case.state.wrong.append("a wrong answer to a call"),
    "is recorded 2 times": lambda case: case.record.rows.append(case.row("s1", 3)),
    "has 2 rows": lambda case: case.record.rows.append(case.row("s1", 2)),
    "root.stages[0] is not recorded": lambda case: case.record.rows.pop(0),
    "nothing is known of attempt 1": lambda case: case.record.lost.clear(),
    "both recorded and unrecorded": lambda case: case.record.rows.append(case.row("s1", 1)),
    "ran 2 times": lambda case: case.runs.append(Run("j", "s1", 2, 9, 50, 60)),
    "of which nothing is known": lambda case: case.runs.append(Run("j", "s0", 2, 9, 50, 60)),
    "was never run": lambda case: case.runs.pop(0),
    "ann has spent 300": lambda case: case.grid_records.spent.update({"money a:ann": 300}),
    "ann has 2 jobs": lambda case: case.grid_records.spent.update({"jobs a:ann": 2}),
    "attempt 1 of root.stages[0] used 100, entered are 101": lambda case: case.enter(0, 1, "late", 1),
    "recorded [100, 0]": lambda case: case.enter(0, 1, "done", 0),
    "unrecorded and used 30, entered are 60": lambda case: case.enter(1, 1, "late", 30),
    "attempt 1 of root.stages[0] has no entry": lambda case: case.record.entries.pop(0),
    "agent ann: money of the month: 200, recorded 199": lambda case: setattr(
        case,
        "grid_records",
        replace(
            case.grid_records,
            verified=Verification(
                (Difference("agent ann: money of the month", 200, 199, "money"),), (), 5, 3, "5-0"
            ),
        ),
    ),
    "attempt 1 of root.stages[0] used 100, entered are (10, 6) tokens": lambda case: change_entry(case)(
        tokens_out=6
    ),
    "attempt 1 of root.stages[0] is 0 requests": lambda case: change_entry(case)(requests=0),
    "attempt 1 of root.stages[0] is 2 requests": lambda case: change_entry(case)(requests=2),
    "m1.bench is charged 200": lambda case: case.grid_records.charged.update({"m1.bench": 200}),
}


@pytest.mark.parametrize("expected", SPOILT)
def test_corrupted_records_are_found(expected: str) -> None:
    case = Case()
    SPOILT[expected](case)
    assert expected in " | ".join(case.find_breaches())


def test_errors_explained_by_faults_or_agents_are_no_breaches() -> None:
    case = Case()
    case.end(JobState.CANCELLED, JobCancelled("so"), "job.cancelled")
    assert case.find_breaches() == []
    case = Case()
    case.end(JobState.FAILED, AttemptsExhausted("lost too often"))
    case.record.rows.pop()
    case.record.lost[1] = dict.fromkeys(range(1, 11), ("m1.bench", 0))
    case.record.entries[1].clear()
    for attempt in range(1, 11):
        case.enter(1, attempt, "lost", None)
    case.grid_records.spent["money a:ann"] = 100
    case.grid_records.charged["m1.bench"] = 100
    case.runs = case.runs[:1]
    assert case.find_breaches() == []


def test_a_model_call_may_fail_only_while_no_sound_seat_could_answer() -> None:
    case = Case()
    path = case.paths["s1"]
    asking = replace(case.state.job.made, asked={"a0": path}, stages={"s0": case.paths["s0"]})
    case.state.job = replace(case.state.job, made=asking)
    case.runs = case.runs[:1]
    case.end(JobState.FAILED, AttemptsExhausted("all failed", {"path": path}))

    def find_breaches(*, seats_failed: bool) -> str:
        auditor = Auditor(
            case.grid_records,
            {"j": case.state},
            case.runs,
            CONFIG,
            lambda job: case.celery,
            lambda job: seats_failed,
        )
        return " ".join(line for check in auditor.run().checks for line in check.breaches)

    assert "which nothing explains" in find_breaches(seats_failed=False)
    assert "which nothing explains" not in find_breaches(seats_failed=True)
    case.state.job = replace(case.state.job, made=replace(asking, asked={}))
    assert "which nothing explains" in find_breaches(seats_failed=True)


def test_recovery_is_the_time_from_the_kill_to_the_next_run() -> None:
    case = Case()
    deaths = [(40, 7), (5000, 8)]
    expected: dict[str, list[float]] = {"interactive": [2.99], "batch": [], "poor": []}
    assert recovery(case.runs, deaths, {"j": case.state}) == expected
    case.state.job.options["priority"] = "batch"
    assert recovery(case.runs, deaths, {"j": case.state})["batch"] == [2.99]
    case.state.job.options["agent"] = "poor"
    assert recovery(case.runs, deaths, {"j": case.state})["poor"] == [2.99]
