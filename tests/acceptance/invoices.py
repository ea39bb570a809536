"""Compare the ledger of a run with its vendors' invoices, call by call.

Each attempt that reported usage must match exactly one call of the witness: the same stage, seat, tokens and
micro-dollars. The remaining calls are the difference. Each of them must belong to an attempt on the same seat
whose usage is unknown according to the ledger, and no such attempt explains two calls. Without a kill or a
cancellation, no calls remain. For an interrupted stream, the ledger has the usage reported until then, which
may be only a part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gridq.config.settings import Settings
from gridq.limits.ledger import RECORDED, Entry
from gridq.views.audit import Check
from tests.acceptance.machines import compute_uses
from tests.acceptance.vendors import Call
from tests.chaos.agents import SubmittedJob
from tests.chaos.auditing import Auditor, AuditResult, costless
from tests.chaos.limits import Bound, Use, list_overdrawn
from tests.chaos.records import GridRecords, JobRecord

UNKNOWN = frozenset({"lost", "cancelled", "back", "died"})
"""Outcomes of attempts whose usage may be unknown."""
BROKEN_OFF = frozenset({"seat"})
"""The same, for an answer that was interrupted."""
CUT = frozenset({"failed"})
"""The same, for an answer that was interrupted after its first piece, so that no other seat could continue.
"""


@dataclass(frozen=True)
class Difference:
    """A paid call of which the grid knows nothing or only a part.

    `what` is the outcome of its attempt, `micro` the micro-dollars that the grid does not know.
    """

    call: Call
    step: int
    attempt: int
    what: str
    micro: int


@dataclass
class Account:
    """The account of one seat: what was paid, what is entered in the ledger, and what is unknown.

    Each counts calls, micro-dollars, and tokens in and out.
    """

    paid: Counter[str] = field(default_factory=Counter)
    entered: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    recorded: int = 0
    refused: int = 0


def _add(to: Counter[str], micro: int | None, tokens_in: int, tokens_out: int, calls: int = 1) -> None:
    to.update(calls=calls, micro=micro or 0, tokens_in=tokens_in, tokens_out=tokens_out)


class Invoices(Auditor):
    """Audits a run by its vendors' calls instead of the stages' own notes."""

    def __init__(
        self,
        grid_records: GridRecords,
        submitted: dict[str, SubmittedJob],
        entries: list[Entry],
        calls: list[Call],
        config: Settings,
        answer: Callable[[str], tuple[str, Any]],
    ) -> None:
        super().__init__(grid_records, submitted, [], config, answer)
        self.audit_result.runs = len(calls)
        self.all_entries = entries
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.accounts: dict[str, Account] = defaultdict(Account)
        self.differences: list[Difference] = []
        self.uses: list[Use] = []
        for call in calls:
            self.calls[call.job].append(call)
            account = self.accounts[call.seat]
            if call.outcome == "refused":
                account.refused += 1
            else:
                _add(account.paid, call.micro, call.tokens_in, call.tokens_out)
        seen: set[tuple[str, int | None, int | None]] = set()
        for entry in entries:
            if entry.charged and entry.tokens_in + entry.tokens_out:
                attempt = (entry.job, entry.step, entry.attempt)
                account = self.accounts[entry.seat]
                _add(
                    account.entered,
                    entry.micro_dollars,
                    entry.tokens_in,
                    entry.tokens_out,
                    attempt not in seen,
                )
                seen.add(attempt)
                account.recorded += entry.what == RECORDED

    def audit_all(self, limits: Iterable[Bound]) -> AuditResult:
        """Check all rules of `run`, and those about money."""
        audit_result = self.run()
        self.uses = compute_uses(limits, self.all_entries)
        audit_result.extra_runs = len(self.differences)
        audit_result.checks += [
            Check("every call was for a submitted job", tuple(self._find_unknown_jobs())),
            Check("each seat's invoice equals its ledger and the unknown calls",
                  tuple(self._compare_accounts())),
            Check("no limit was overdrawn", list_overdrawn(self.uses)),
        ]  # fmt: skip
        return audit_result

    def _check_runs(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        """Check that each attempt with usage is one call, and each other call one attempt without usage."""
        job = state.job
        number = {op.path: n for n, step in enumerate(self.steps[job.id]) for op in step.ops}
        left: dict[int, list[Call]] = defaultdict(list)
        for call in self.calls[job.id]:
            if call.outcome != "refused":
                left[number[job.made.stages[call.stage]]].append(call)
        wrong = []
        for step in sorted(left.keys() | record.entries.keys()):
            unreported, odd = [], []
            for attempt, found in sorted(record.entries.get(step, {}).items()):
                usage = _sum_usage(found)
                if usage is None:
                    unreported.append((attempt, found))
                    recorded = any(entry.what == RECORDED for entry in found)
                    if recorded and not costless(self.steps[job.id][step]):
                        wrong.append(f"{job.id}: attempt {attempt} of step {step} is recorded without usage")
                    continue
                same = next((call for call in left[step] if _get_usage(call) == usage), None)
                if same is None:
                    odd.append((attempt, found, usage))
                else:
                    left[step].remove(same)
            for attempt, found, usage in odd:
                allowed_errors = (
                    call for call in left[step] if job.options.get("stream") and _is_part(usage, found, call)
                )
                part = next(allowed_errors, None)
                if part is None:
                    where = f"{job.id}: attempt {attempt} of step {step}"
                    wrong.append(f"{where} used {usage}, which matches no call; remaining are {left[step]}")
                else:
                    self._record_difference(part, step, attempt, found)
                    left[step].remove(part)
            wrong += self._explain(job.id, step, left[step], unreported)
        return wrong

    def _explain(
        self, job: str, step: int, calls: list[Call], unreported: list[tuple[int, list[Entry]]]
    ) -> list[str]:
        """Match each unreported call with an attempt without usage. Return the calls that match none."""
        wrong = []
        for call in sorted(calls, key=lambda call: call.at):
            whats = UNKNOWN | BROKEN_OFF if call.outcome == "cut" else UNKNOWN
            for at, (attempt, found) in enumerate(unreported):
                if found[0].seat == call.seat and found[0].what in whats:
                    del unreported[at]
                    self._record_difference(call, step, attempt, found)
                    break
            else:
                known = [
                    (attempt, [entry.what for entry in found], found[0].seat) for attempt, found in unreported
                ]
                wrong.append(
                    f"{job}: step {step}: no attempt explains {call}; those without usage are {known}"
                )
        return wrong

    def _record_difference(self, call: Call, step: int, attempt: int, found: list[Entry]) -> None:
        """Record the part of a call that the entries of its attempt do not have."""
        micro = (call.micro or 0) - sum(entry.micro_dollars or 0 for entry in found)
        tokens_in = call.tokens_in - sum(entry.tokens_in for entry in found)
        tokens_out = call.tokens_out - sum(entry.tokens_out for entry in found)
        whole = tokens_in == call.tokens_in and tokens_out == call.tokens_out
        self.differences.append(Difference(call, step, attempt, found[0].what, micro))
        _add(self.accounts[call.seat].unknown, micro, tokens_in, tokens_out, int(whole))

    def _check_ledger(self, state: SubmittedJob, record: JobRecord) -> list[str]:
        """Check that lost attempts are charged as entered, and that recorded ones are entered as such."""
        job = state.job.id
        wrong = []
        for n, step in enumerate(self.steps[job]):
            recorded = set(record.recorded(n, step.ops[0].path)) if step.ops else set()
            lost, entries = record.lost.get(n, {}), record.entries.get(n, {})
            for attempt in sorted(recorded | lost.keys() | entries.keys()):
                found = entries.get(attempt, [])
                used = sum(entry.micro_dollars or 0 for entry in found)
                done = [entry for entry in found if entry.what == RECORDED]
                where = f"{job}: attempt {attempt} of {step.path}"
                if not found and not costless(step):
                    wrong.append(f"{where} has no entry")
                elif found and (attempt in recorded) != (len(done) == 1):
                    wrong.append(f"{where} is recorded or not, entered are {[each.what for each in found]}")
                elif attempt in lost and used != lost[attempt][1]:
                    wrong.append(f"{where} is charged {lost[attempt][1]}, entered are {used}")
        return wrong

    def _check_seats(self) -> list[str]:
        """Check that the rows and charges of each seat equal its ledger."""
        used = self._sum_seats()
        return [
            f"{seat}: recorded and wasted are {used[seat]}, entered {account.entered['micro']}"
            for seat, account in sorted(self.accounts.items())
            if used[seat] != account.entered["micro"]
        ]

    def _find_unknown_jobs(self) -> list[str]:
        return [
            f"{job} has {len(calls)} calls" for job, calls in self.calls.items() if job not in self.submitted
        ]

    def _compare_accounts(self) -> list[str]:
        return [
            f"{seat}: paid {dict(each.paid)}, entered {dict(each.entered)}, unknown {dict(each.unknown)}"
            for seat, each in sorted(self.accounts.items())
            if +each.paid != each.entered + each.unknown
        ]


def _sum_usage(found: list[Entry]) -> tuple[str, int, int, int | None] | None:
    """Return the seat, tokens and micro-dollars of all entries of an attempt; None if there is no usage."""
    tokens_in, tokens_out = sum(each.tokens_in for each in found), sum(each.tokens_out for each in found)
    if not tokens_in + tokens_out:
        return None
    micro = [each.micro_dollars for each in found if each.micro_dollars is not None]
    return found[0].seat, tokens_in, tokens_out, sum(micro) if micro else None


def _get_usage(call: Call) -> tuple[str, int, int, int | None]:
    return call.seat, call.tokens_in, call.tokens_out, call.micro


def _is_part(usage: tuple[str, int, int, int | None], found: list[Entry], call: Call) -> bool:
    """Return whether the usage may be a part of this call, reported before it was interrupted."""
    seat, tokens_in, tokens_out, micro = usage
    fits = seat == call.seat and tokens_in <= call.tokens_in and tokens_out <= call.tokens_out
    allowed_errors = UNKNOWN | BROKEN_OFF | CUT if call.outcome == "cut" else UNKNOWN
    return fits and (micro or 0) <= (call.micro or 0) and found[0].what in allowed_errors
