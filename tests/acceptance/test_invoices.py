"""The comparison of ledger and invoices finds each discrepancy that is put into a correct run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import Settings
from gridq.limits.ledger import Entry
from gridq.limits.ledger_verification import Verification
from gridq.protocol.models import HistoryRow
from gridq.protocol.states import JobState
from tests.acceptance.invoices import Invoices
from tests.acceptance.machines import STAGES, Bound, compute_uses
from tests.acceptance.vendors import Call, CallContent, Price, Vendors, make_system_text
from tests.chaos.agents import SubmittedJob
from tests.chaos.graphs import ExpectedOutcome, GeneratedGraph
from tests.chaos.plan import Job
from tests.chaos.records import GridRecords, JobRecord
from tests.fakes.vendor_apis import Used

PATHS = {"s0": "root.stages[0]", "s1": "root.stages[1]"}


class Case:
    """A job of two stages. The second was lost once in a call, and its first answer was broken off."""

    def __init__(self, folder: Path) -> None:
        (folder / "ask.json").write_text(json.dumps(STAGES[0]))
        self.config = Settings(profiles=("llm",), stages_dir=folder)
        stages = [
            {
                "op": "Stage",
                "id": "ask",
                "config": {"model": "fast", "system": make_system_text("j", name, {})},
            }
            for name in PATHS
        ]
        graph: Any = {"description": "x", "version": "0.1.0", "root": {"op": "Sequential", "stages": stages}}
        made = GeneratedGraph(graph, None, ExpectedOutcome("right"), PATHS)
        self.state = SubmittedJob(Job("j", made, {"agent": "ann"}, 0.0), accepted=True)
        self.record = JobRecord(JobState.DONE, "right", None, 1, True)
        self.record.rows = [self.row("s0", 1), self.row("s1", 3)]
        self.record.lost[1] = {1: ("m2.b", 0), 2: ("m1.a", 0)}
        self.entries = [
            self.entry(1, 0, 1, "done", "m1.a", 100),
            self.entry(2, 1, 1, "seat", "m2.b", None),
            self.entry(3, 1, 2, "lost", "m1.a", None),
            self.entry(4, 1, 3, "done", "m2.b", 200),
        ]
        self.calls = [
            Call("m1.a", "j", "s0", 0, "paid", 1, 10, 5, 100),
            Call("m2.b", "j", "s1", 0, "cut", 2, 10, 6, 150),
            Call("m1.a", "j", "s1", 1, "paid", 3, 10, 7, 110),
            Call("m2.b", "j", "s1", 2, "paid", 4, 10, 8, 200),
            Call("m2.b", "j", "s1", 3, "refused", 5),
        ]

    def row(self, stage: str, attempt: int) -> HistoryRow:
        return HistoryRow(
            path=PATHS[stage], stage="ask", queue="llm:fast", worker="b@m2" if stage == "s1" else "a@m1",
            attempt=attempt, state="done", micro_dollars=200 if stage == "s1" else 100,
        )  # fmt: skip

    def entry(self, at: int, step: int, attempt: int, what: str, seat: str, micro: int | None) -> Entry:
        tokens = (0, 0) if micro is None else (10, 5 if step == 0 else 8)
        return Entry(f"{at}-0", at, what, "j", step, attempt, seat, "ann", "-", "llm:fast", micro, *tokens, 1)

    def audit_run(self, limits: tuple[Bound, ...] = ()) -> Invoices:
        for entry in self.entries:
            if entry.step is not None and entry.attempt is not None:
                self.record.entries[entry.step][entry.attempt].append(entry)
        spent = {"money a:ann": 300, "jobs a:ann": 1}
        grid_records = GridRecords({"j": self.record}, spent, {}, 1, Verification((), (), 5, 3, "5-0"))
        found = Invoices(
            grid_records, {"j": self.state}, self.entries, self.calls, self.config,
            lambda job: ("SUCCESS", "right"),
        )  # fmt: skip
        found.audit_all(limits)
        return found

    def breaches(self) -> str:
        return " ".join(line for check in self.audit_run().audit_result.checks for line in check.breaches)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_correct_run_passes(case: Case) -> None:
    found = case.audit_run()
    assert [check for check in found.audit_result.checks if check.breaches] == []
    assert [(each.call.number, each.attempt, each.what) for each in found.differences] == [
        (0, 1, "seat"),
        (1, 2, "lost"),
    ]
    assert found.accounts["m1.a"].unknown["micro"] == 110


def swap_seat(case: Case) -> None:
    case.calls[0] = replace(case.calls[0], seat="m2.b")


def forget_call(case: Case) -> None:
    del case.calls[3]


def call_twice(case: Case) -> None:
    case.calls.append(replace(case.calls[3], number=9, tokens_out=99))


def dearer(case: Case) -> None:
    case.calls[0] = replace(case.calls[0], micro=101)


def more_tokens(case: Case) -> None:
    case.calls[0] = replace(case.calls[0], tokens_in=11)


def not_broken_off(case: Case) -> None:
    case.calls[1] = replace(case.calls[1], outcome="paid")


def entered_twice(case: Case) -> None:
    case.entries.append(replace(case.entries[0], id="9-0", what="late"))


def no_entry(case: Case) -> None:
    del case.entries[1]


def recorded_without_use(case: Case) -> None:
    case.entries[0] = replace(case.entries[0], micro_dollars=None, tokens_in=0, tokens_out=0)


def a_stranger(case: Case) -> None:
    case.calls.append(Call("m1.a", "k", "s0", 0, "refused", 9))


@pytest.mark.parametrize(
    "spoil",
    [
        swap_seat,
        forget_call,
        call_twice,
        dearer,
        more_tokens,
        not_broken_off,
        entered_twice,
        no_entry,
        recorded_without_use,
        a_stranger,
    ],
)
def test_each_discrepancy_is_found(case: Case, spoil: Callable[[Case], None]) -> None:
    spoil(case)
    assert case.breaches()


def test_partial_usage_is_a_breach(case: Case) -> None:
    case.entries[1] = replace(case.entries[1], micro_dollars=8, tokens_out=4)
    case.record.lost[1][1] = ("m2.b", 8)
    assert "which matches no call" in case.breaches()


def test_partial_usage_of_a_streamed_job_is_allowed(case: Case) -> None:
    case.entries[1] = replace(case.entries[1], micro_dollars=8, tokens_out=4)
    case.record.lost[1][1] = ("m2.b", 8)
    case.state.job.options["stream"] = True
    found = case.audit_run()
    assert [check for check in found.audit_result.checks if check.breaches] == []
    assert found.accounts["m2.b"].unknown == {"calls": 0, "micro": 142, "tokens_in": 10, "tokens_out": 2}


def test_an_overdrawn_limit_is_found(case: Case) -> None:
    limits = (
        Bound("seat m1.a", "dollars", 100, "month"),
        Bound("seat m2.b", "dollars", 199, "day"),
        Bound("seat m2.b", "requests", 1, "minute"),
        Bound("agent ann", "dollars", 300, "month"),
    )
    assert [use.over for use in compute_uses(limits, case.entries)] == [False, True, True, False]
    late = [*case.entries, replace(case.entries[3], id="9-0", what="late", micro_dollars=7)]
    (use,) = compute_uses([Bound("seat m2.b", "dollars", 200, "month")], late)
    assert (use.used, use.late, use.over) == (207, 7, False)


def test_an_invoice_rounds_up_and_knows_each_kind_of_token() -> None:
    price = Price("0.5", "2", cached="0.05", written="1", reasoning="4")
    # 100 plain at 0.5, 30 read at 0.05, 7 written at 1, 8 said at 2, 3 reasoned at 4
    assert price.compute_cost(Used(137, 11, cached=30, written=7, reasoning=3)) == 50 + 2 + 7 + 16 + 12
    assert Price("0.5", "2").compute_cost(Used(1, 0)) == 1


def test_calls_of_one_stage_differ(tmp_path: Path) -> None:
    content = CallContent("j", "s", {"flaky": 1, "cut": 2}, "p")
    with Vendors(tmp_path / "witness", {"m1.a": ("openai", Price("0.5", "2"))}) as vendors:
        calls = [vendors.call("m1.a", content)[0] for _ in range(10)]
    assert [call.outcome for call in calls[:3]] == ["refused", "cut", "paid"]
    assert len({call.tokens_out for call in calls[1:]}) == 9
