"""Compare what the endpoints did with the ledger, and what clients were answered with both.

Each use in the ledger names its call (`calls.SERIAL_BASE`). So these rules hold:

- Each use is one call: of that seat, for that job and stage, with those tokens. No call is billed twice.
- What is recorded is a call that was answered completely.
- Each other call that was answered belongs to an attempt whose use is unknown: lost, cancelled, handed back,
  died.
- A client's answer is that of one call, and its stream has each piece once and in order.
- An endpoint that always fails gets a few calls, and then only the trials of a seat in cooldown.
- A request fails only for a reason that a fault explains, with the code of that reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridq.limits.ledger import RECORDED, Entry, read_entries
from gridq.views.audit import Check
from tests.chaos.disturbances import SERVER, Disturbances
from tests.chaos.endpoints.calls import SERIAL_BASE, Call, draw_usage, read_calls
from tests.chaos.endpoints.clients import STAGE, Reply
from tests.chaos.endpoints.control import Span
from tests.chaos.endpoints.server import RETRY_AFTER_SECONDS

if TYPE_CHECKING:
    from tests.chaos.agents import SubmittedJob
    from tests.chaos.grid import ChaosGrid

UNKNOWN = frozenset({"lost", "cancelled", "back", "died", "seat", "failed"})
"""Outcomes of attempts whose use may be unknown."""

CUT = "stage.stream_cut"
OF_THE_SERVER = frozenset({"broker.unreachable", "broker.error"})
OF_THE_GATEWAY = frozenset({"gateway.stopping"})
OF_SEATS = frozenset(
    {
        *("seat.none_live", "seat.unavailable", "seat.rate_limited", "seat.degraded"),
        *("seat.model_in_cooldown", "seat.model_unavailable", "seat.refused", "seat.unreachable"),
        *("stage.attempts_exhausted", "job.deadline", "job.queue_timeout", "job.deadline_unreachable"),
    }
)
"""Codes that say that no seat could serve a request."""

FAILURES_BEFORE_COOLDOWN = 10 + 4
"""The most calls that fail before a cooldown: the refusals of one agent that open a model's breaker
(`gridq.execution.model_health`), and one call for each other slot."""
TRIAL_SECONDS = 8.0
"""A seat in cooldown tries its endpoint after 10 s, and then less often."""

Attempt = tuple[str, int | None, int | None]


@dataclass
class EndpointAudit:
    """The rules with their breaches, and the sums for the report."""

    checks: list[Check] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    """By the outcome of the call."""
    billed: int = 0
    unknown: int = 0
    """Answered calls of attempts whose use the grid does not know."""
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Requests that were not answered, by their code."""


@dataclass(frozen=True)
class Use:
    """What the ledger has of an attempt."""

    attempt: Attempt
    seat: str
    whats: frozenset[str]
    tokens_in: int
    tokens_out: int

    @property
    def recorded(self) -> bool:
        return RECORDED in self.whats

    @property
    def serial(self) -> int | None:
        """The call that it names; None: it names none, because its use is unknown or only estimated."""
        return self.tokens_in - SERIAL_BASE if self.tokens_in >= SERIAL_BASE else None

    def __str__(self) -> str:
        job, step, attempt = self.attempt
        return f"{job}: attempt {attempt} of step {step} at {self.seat} ({', '.join(sorted(self.whats))})"


def sum_uses(entries: Iterable[Entry], seats: Iterable[str]) -> list[Use]:
    """Return the use of each attempt at one of `seats`."""
    wanted = frozenset(seats)
    found: dict[Attempt, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.charged and entry.seat in wanted:
            found[entry.job, entry.step, entry.attempt].append(entry)
    return [
        Use(
            attempt,
            each[0].seat,
            frozenset(entry.what for entry in each),
            sum(entry.tokens_in for entry in each),
            sum(entry.tokens_out for entry in each),
        )
        for attempt, each in found.items()
    ]


class Bills:
    """Matches the uses of a ledger with the calls. `sources`: the source of each known job's calls."""

    def __init__(self, calls: Mapping[int, Call], uses: list[Use], sources: Mapping[str, str]) -> None:
        self.calls = calls
        self.uses = uses
        self.sources = sources
        self.billed: dict[int, Use] = {}
        self.wrong_uses: list[str] = []
        self.unknown: list[Call] = []
        for use in uses:
            self._match(use)

    def _match(self, use: Use) -> None:
        if use.serial is None:
            if use.recorded:
                self.wrong_uses.append(f"{use} is recorded with {use.tokens_in} tokens, which is no call")
            return
        call = self.calls.get(use.serial)
        if call is None:
            self.wrong_uses.append(f"{use} used {use.tokens_in} tokens, which is no call or several")
            return
        if call.serial in self.billed:
            self.wrong_uses.append(
                f"call {call.serial} is billed twice: {self.billed[call.serial]} and {use}"
            )
        self.billed[call.serial] = use
        source = self.sources.get(use.attempt[0], call.source)
        if (call.endpoint, call.source) != (use.seat, source):
            self.wrong_uses.append(f"{use} is billed {call}")
        if call.outcome in ("refused", "silent"):
            self.wrong_uses.append(f"{use} is billed {call}, which had no answer")
        if use.recorded and not (call.answered and use.tokens_out == draw_usage(call.serial).tokens_out):
            self.wrong_uses.append(f"{use} is recorded with {use.tokens_out} tokens of {call}")

    def explain_unbilled(self) -> list[str]:
        """Return a line for each answered call that nothing in the ledger explains."""
        open_attempts: Counter[tuple[str, str]] = Counter()
        for use in self.uses:
            if use.serial is None and use.whats & UNKNOWN:
                open_attempts[use.seat, self.sources.get(use.attempt[0], "")] += 1
        wrong = []
        for call in self.calls.values():
            if not call.answered or call.serial in self.billed:
                continue
            for source in (call.source, ""):  # "": a job of a client that never had its id
                if open_attempts[call.endpoint, source]:
                    open_attempts[call.endpoint, source] -= 1
                    self.unknown.append(call)
                    break
            else:
                wrong.append(f"{call} was answered, and nothing in the ledger explains it")
        return wrong


def check_replies(replies: Iterable[Reply], uses: list[Use], bills: Bills) -> list[str]:
    """Return what is wrong with the answers that clients got."""
    recorded: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        if use.recorded:
            recorded[use.attempt[0]].append(use)
    wrong = []
    for reply in replies:
        expected = reply.request.expected
        if reply.answered:
            if reply.text != expected:
                wrong.append(f"{reply.request} was answered {reply.text!r}, not {expected!r}")
            if len(recorded[reply.job]) != 1:
                wrong.append(f"{reply.request} was answered by the attempts {recorded[reply.job]}")
        elif not expected.startswith(reply.text):
            wrong.append(f"{reply.request} got {reply.text!r} and then {reply.code or reply.broken!r}")
    return wrong


def explain_failure(
    reply: Reply, gateway: str, sound: str, workers: Iterable[str], found: Disturbances, cut: bool
) -> bool:
    """Return whether a fault explains how a request failed. `gateway`, `sound`, `workers`: the parts that
    served it, that serve the sound endpoint, and all endpoints. `cut`: one of its calls broke off.
    """
    begun, ended = reply.begun, reply.ended
    if reply.broken or reply.code in OF_THE_GATEWAY:
        return found.find([gateway], begun, ended)
    if reply.code in OF_THE_SERVER:
        return found.find([gateway, SERVER], begun, ended)
    if reply.code in OF_SEATS:
        return found.find([sound, SERVER], begun, ended)
    if reply.code == CUT:
        return cut or found.find([*workers, SERVER], begun, ended)
    return False


def check_trials(calls: Iterable[Call], spans: Iterable[Span], found: Disturbances) -> list[str]:
    """Return the endpoints that got more calls while they always failed than an open breaker lets through. A
    worker that starts again knows nothing of that.
    """
    by_endpoint: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        by_endpoint[call.endpoint].append(call.begun / 1000)
    wrong = []
    for span in spans:
        if span.mode not in ("refusing", "half-open") or (span.mode, span.how) == ("half-open", "stream"):
            continue
        times = [at for at in by_endpoint[span.endpoint] if span.begun <= at <= span.ended]
        ended = min(span.ended, max(times, default=span.begun))
        starts = 1 + found.count(span.endpoint, span.begun, ended)
        every = RETRY_AFTER_SECONDS if span.how == "429" else TRIAL_SECONDS
        allowed = FAILURES_BEFORE_COOLDOWN * starts + (ended - span.begun) / every
        if len(times) > allowed:
            where = f"{span.endpoint} got {len(times)} calls in {ended - span.begun:.1f} s"
            wrong.append(f"{where} while it was {span.mode} {span.how}")
    return wrong


def audit_endpoints(
    grid: ChaosGrid, submitted: Mapping[str, SubmittedJob], replies: list[Reply]
) -> EndpointAudit:
    """Apply every rule to a run that is over. The last endpoint of the layout is the sound one."""
    names = list(grid.layout.endpoints)
    calls = read_calls(grid.calls)
    with grid.direct() as client:
        uses = sum_uses(read_entries(client, grid.keys), names)
    sources = {job: job for job in submitted} | {
        reply.job: reply.request.id for reply in replies if reply.job
    }
    bills = Bills(calls, uses, sources)
    unexplained = bills.explain_unbilled()
    gateways = {
        url: part.name
        for url, part in zip(
            grid.urls.split(","),
            (part for part in grid.parts.values() if part.sort == "gateway"),
            strict=True,
        )
    }
    cut = {call.source for call in calls.values() if call.outcome == "cut" or not call.complete}
    unfounded = [
        f"{reply.request} failed after {reply.ended - reply.begun:.1f} s: {reply.status} "
        f"{reply.code or reply.broken or 'unfinished'} {reply.message}"
        for reply in replies
        if not reply.answered
        and not explain_failure(
            reply, gateways[reply.url], names[-1], names, grid.disturbances, reply.request.id in cut
        )
    ]
    spans: Sequence[Span] = grid.endpoints.spans if grid.endpoints is not None else ()
    eager = check_trials(calls.values(), spans, grid.disturbances)
    strangers = [
        f"{call} is for nobody"
        for call in calls.values()
        if call.source not in submitted and call.stage != STAGE
    ]
    return EndpointAudit(
        checks=[
            Check(
                "each use of a model is one answered call of its job, and billed once",
                tuple(bills.wrong_uses),
            ),
            Check(
                "each other answered call belongs to an attempt whose use is unknown",
                (*unexplained, *strangers),
            ),
            Check(
                "clients of model APIs got the right answers, in order and once",
                tuple(check_replies(replies, uses, bills)),
            ),
            Check("a seat whose endpoint fails goes into cooldown, and makes only its trials", tuple(eager)),
            Check(
                "no request fails while a sound endpoint's seat lives, and each failure has its code",
                tuple(unfounded),
            ),
        ],
        calls=Counter(
            call.outcome if call.complete else f"{call.outcome}, broken off" for call in calls.values()
        ),
        billed=len(bills.billed),
        unknown=len(bills.unknown),
        answered=sum(reply.answered for reply in replies),
        failed=Counter(
            reply.code or reply.broken.partition(":")[0] or "unfinished"
            for reply in replies
            if not reply.answered
        ),
    )
