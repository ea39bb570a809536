"""The audit of model endpoints finds what is wrong: the books of a good run are spoilt in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gridq.limits.ledger import Entry
from tests.chaos.disturbances import RECOVERY_SECONDS, SERVER, Disturbances
from tests.chaos.endpoints.audit import Bills, check_replies, check_trials, explain_failure, sum_uses
from tests.chaos.endpoints.calls import Call, draw_usage
from tests.chaos.endpoints.clients import Reply, Request
from tests.chaos.endpoints.control import Span

SEAT, OTHER = "m1.model", "m2.model"
SOUND = "m3.model"


class Case:
    """A job's stage that was answered by the second seat after it was lost on the first, and a client's
    request.
    """

    def __init__(self) -> None:
        self.calls = {
            1: Call(1, SEAT, "job", "a0", "answered", 10, 20, True),
            2: Call(2, OTHER, "job", "a0", "answered", 30, 40, True),
            3: Call(3, SEAT, "q1", "request", "answered", 30, 40, True),
            4: Call(4, OTHER, "q1", "request", "refused", 20, 25, True),
        }
        self.entries = [
            self.entry("lost", "job", 1, SEAT, 0, 0),
            self.entry("done", "job", 2, OTHER, *self.tokens(2)),
            self.entry("done", "client-job", 1, SEAT, *self.tokens(3)),
        ]
        self.reply = Reply(Request("q1", 0.0, "chat", True), status=200, job="client-job", finished=True)
        self.reply.text = self.reply.request.expected

    def tokens(self, serial: int) -> tuple[int, int]:
        used = draw_usage(serial)
        return used.tokens_in, used.tokens_out

    def entry(self, what: str, job: str, attempt: int, seat: str, tokens_in: int, tokens_out: int) -> Entry:
        return Entry(
            "1-1",
            1,
            what,
            job,
            0,
            attempt,
            seat,
            "ann",
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            requests=1,
        )

    def find_breaches(self) -> list[str]:
        uses = sum_uses(self.entries, [SEAT, OTHER])
        bills = Bills(self.calls, uses, {"job": "job", "client-job": "q1"})
        unexplained = bills.explain_unbilled()
        return [*bills.wrong_uses, *unexplained, *check_replies([self.reply], uses, bills)]

    def change_call(self, serial: int, **changes: object) -> None:
        self.calls[serial] = replace(self.calls[serial], **changes)  # type: ignore[arg-type]

    def change_entry(self, number: int, **changes: object) -> None:
        self.entries[number] = replace(self.entries[number], **changes)  # type: ignore[arg-type]


def test_consistent_books_have_no_breaches() -> None:
    assert Case().find_breaches() == []


def test_a_part_of_a_stream_that_broke_off_may_be_billed_as_waste() -> None:
    case = Case()
    case.change_call(1, outcome="cut", complete=False)
    case.change_entry(0, what="failed", tokens_in=case.tokens(1)[0], tokens_out=1)
    assert case.find_breaches() == []


def test_an_estimated_use_of_a_lost_attempt_names_no_call() -> None:
    case = Case()
    case.change_entry(0, tokens_in=40, tokens_out=3)
    assert case.find_breaches() == []


SPOILT: dict[str, Callable[[Case], object]] = {
    "call 2 is billed twice": lambda case: case.entries.append(
        case.entry("lost", "job", 3, OTHER, *case.tokens(2))
    ),
    "which is no call or several": lambda case: case.change_entry(1, tokens_in=case.tokens(9)[0]),
    "is recorded with 40 tokens, which is no call": lambda case: case.change_entry(1, tokens_in=40),
    "is billed Call(serial=2": lambda case: case.change_entry(1, seat=SEAT),
    "is billed Call(serial=3": lambda case: case.change_entry(1, tokens_in=case.tokens(3)[0], seat=SEAT),
    "which had no answer": lambda case: case.entries.append(
        case.entry("seat", "client-job", 2, OTHER, *case.tokens(4))
    ),
    "is recorded with 7 tokens of": lambda case: case.change_entry(1, tokens_out=7),
    "complete=False": lambda case: case.change_call(2, complete=False),
    "was answered, and nothing in the ledger explains it": lambda case: case.entries.pop(0),
    "explains it": lambda case: case.calls.update({5: replace(case.calls[1], serial=5)}),
    "was answered 'twice": lambda case: setattr(case.reply, "text", "twice" + case.reply.text),
    "was answered by the attempts []": lambda case: setattr(case.reply, "job", "another"),
    "and then 'stage.stream_cut'": lambda case: (
        setattr(case.reply, "code", "stage.stream_cut"),
        setattr(case.reply, "text", "other text"),
    ),
}


@pytest.mark.parametrize("expected", SPOILT)
def test_spoilt_books_are_found(expected: str) -> None:
    case = Case()
    SPOILT[expected](case)
    assert expected in " | ".join(case.find_breaches())


def explain(code: str = "", broken: str = "", cut: bool = False, **disturbed: float) -> bool:
    found = Disturbances()
    for part, seconds in disturbed.items():
        found.add(part.replace("_", "."), seconds)
    now = time.monotonic()
    reply = Reply(Request("q1", 0.0, "chat", False), "http://g", now, now + 1, code=code, broken=broken)
    return explain_failure(reply, "g1.gateway", SOUND, [SEAT, OTHER, SOUND], found, cut)


def test_a_failure_is_explained_by_a_fault_of_what_its_code_names() -> None:
    assert not explain("stage.attempts_exhausted")
    assert not explain("stage.attempts_exhausted", m1_model=1.0)
    assert explain("stage.attempts_exhausted", m3_model=1.0)
    assert explain("seat.none_live", server=0.0)
    assert not explain("broker.unreachable", m3_model=1.0)
    assert explain("broker.unreachable", g1_gateway=1.0)
    assert not explain(broken="ReadError: reset", server=1.0)
    assert explain(broken="ReadError: reset", g1_gateway=0.0)
    assert not explain("stage.stream_cut")
    assert explain("stage.stream_cut", cut=True)
    assert explain("stage.stream_cut", m1_model=0.0)
    assert not explain("stage.failed", server=1.0, g1_gateway=1.0, m3_model=1.0, cut=True)
    assert not explain("", server=1.0)


def test_a_fault_disturbs_until_its_part_has_recovered() -> None:
    found = Disturbances()
    found.add(SERVER, 2.0)
    now = time.monotonic()
    assert found.find([SERVER], now, now + 1)
    assert found.find([SERVER], now + 1 + RECOVERY_SECONDS, now + 99)
    assert not found.find([SERVER], now + 3 + RECOVERY_SECONDS, now + 99)
    assert not found.find([SERVER], now - 9, now - 2)
    assert not found.find([SEAT], now, now + 1)
    assert found.count(SERVER, now, now + 1) == 1
    ((begun, ended),) = found.suspensions
    assert ended - begun == pytest.approx(2.0, abs=0.1)


def test_a_seat_that_always_fails_may_only_try_now_and_then() -> None:
    def refused(times: int, seconds: float) -> list[Call]:
        return [
            Call(number, SEAT, "q", "request", "refused", round(1000 * number * seconds / times))
            for number in range(times)
        ]

    span = Span(SEAT, "refusing", "503", 0.0, 60.0)
    assert check_trials(refused(20, 60), [span], Disturbances()) == []
    assert "got 60 calls" in check_trials(refused(60, 60), [span], Disturbances())[0]
    limited = Span(SEAT, "refusing", "429", 0.0, 60.0)
    assert check_trials(refused(60, 60), [limited], Disturbances()) == []
    healthy = Span(SEAT, "healthy", "", 0.0, 60.0)
    assert check_trials(refused(60, 60), [healthy], Disturbances()) == []
