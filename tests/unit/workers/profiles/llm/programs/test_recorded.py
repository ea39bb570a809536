"""Recorded output of the vendors' programs is parsed."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import (
    GridError,
    ModelUnavailable,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
from tests.fakes.programs import FAKE
from tests.unit.workers.model_apis.test_odd_shapes import broken
from workers.profiles.llm.programs.failures import classify_failure, make_error
from workers.profiles.llm.programs.reset_times import parse_reset_time
from workers.profiles.llm.programs.vendor import Failure, OutputParser, ProgramCall
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS

RECORDED = FAKE.parent
TRIES = {
    "claude": {
        "bad-key": (SeatDegraded, "logged out"),
        "no-login": (SeatDegraded, "logged out"),
        "poor": (SeatDegraded, "no credit"),
        "status-402": (SeatDegraded, "no credit"),
        "status-429": (SeatRateLimited, "rate limited"),
        "status-500": (SeatUnavailable, "overloaded"),
        "status-529": (SeatUnavailable, "overloaded"),
        "status-400": (StageError, "request refused"),
        "unknown": (ModelUnavailable, "model unknown"),
        "cut": (SeatUnavailable, None),
        "error-late": (SeatUnavailable, "overloaded"),
        "refused": (SeatUnavailable, None),
        "empty": (SeatUnavailable, None),
        "sigterm": (SeatUnavailable, None),
    },
    "codex": {
        "bad-key": (SeatDegraded, "logged out"),
        "no-login": (SeatDegraded, "logged out"),
        "poor": (SeatDegraded, "no credit"),
        "status-402": (SeatDegraded, "no credit"),
        "status-429": (SeatRateLimited, "rate limited"),
        "status-500": (SeatUnavailable, "overloaded"),
        "status-529": (SeatUnavailable, "overloaded"),
        "status-400": (StageError, "request refused"),
        "unknown": (ModelUnavailable, "model unknown"),
        "cut": (SeatUnavailable, None),
        "failed": (SeatUnavailable, None),
        "refused": (SeatUnavailable, None),
        "empty": (SeatUnavailable, None),
        "sigterm": (SeatUnavailable, None),
    },
    "gemini": {
        "stream-bad-key": (SeatDegraded, "logged out"),
        "stream-no-login": (SeatDegraded, "logged out"),
        "no-login": (SeatDegraded, "logged out"),
        "stream-429": (SeatRateLimited, "rate limited"),
        "stream-500": (SeatUnavailable, "overloaded"),
        "stream-404": (ModelUnavailable, "model unknown"),
        "stream-refused": (SeatUnavailable, None),
        "cut-stream": (SeatUnavailable, None),
        "stream-empty": (SeatUnavailable, None),
        "sigterm-silent": (SeatUnavailable, None),
    },
    "copilot": {
        "bad-key": (SeatDegraded, "logged out"),
        "poor": (SeatDegraded, "no credit"),
        "status-429": (SeatRateLimited, "rate limited"),
        "status-500": (SeatUnavailable, "overloaded"),
        "unknown": (ModelUnavailable, "model unknown"),
        "refused": (SeatUnavailable, None),
        "cut": (SeatUnavailable, None),
        "empty": (SeatUnavailable, None),
        "sigterm": (SeatUnavailable, None),
    },
    "opencode": {
        "bad-key": (SeatDegraded, "logged out"),
        "no-login": (SeatDegraded, "logged out"),
        "poor": (SeatDegraded, "no credit"),
        "unknown": (ModelUnavailable, "model unknown"),
        "empty": (SeatUnavailable, None),
        "sigterm": (SeatUnavailable, None),
    },
}
PLAIN = {"claude": "plain", "codex": "plain", "gemini": "stream", "copilot": "plain", "opencode": "plain"}
CLAUDES = datetime.fromtimestamp(1795887052, UTC)
CASES = [(cli, case, *expected) for cli, cases in TRIES.items() for case, expected in cases.items()]


def read(cli: str, case: str, *, streams: bool = False) -> tuple[OutputParser, list[str]]:
    call = ProgramCall("m", Path(), Path(), Path(), streams=streams)
    parser = VENDOR_PROGRAMS[cli].make_parser(call)
    lines = (RECORDED / cli / f"{case}.stdout").read_bytes().splitlines()
    return parser, list(filter(None, map(parser.add_line, lines)))


def failed(cli: str, case: str) -> GridError:
    parser, _ = read(cli, case)
    assert not (parser.is_complete and parser.has_text)
    stderr = (RECORDED / cli / f"{case}.stderr").read_text("utf-8")
    words = parser.refusal or f"{parser.noise}\n{stderr}"
    return make_error(VENDOR_PROGRAMS[cli], words, stderr, words, {})


@pytest.mark.parametrize(("cli", "case", "kind", "state"), CASES)
def test_a_recorded_failure_has_its_error_and_state(
    cli: str, case: str, kind: type[GridError], state: str | None
):
    error = failed(cli, case)
    assert type(error) is kind, error
    assert error.details.get("state") == state


@pytest.mark.parametrize("cli", sorted(PLAIN))
def test_a_recorded_answer_has_its_usage(cli: str):
    parser, texts = read(cli, PLAIN[cli])
    assert "".join(texts).endswith("so it goes on ")  # copilot's server was asked with the date before
    assert parser.is_complete
    if cli == "copilot":  # it says nothing of tokens
        assert parser.usage is None
    else:
        assert parser.usage is not None
        assert (parser.usage.tokens_in, parser.usage.tokens_cached, parser.usage.tokens_out) == (7, 2, 3)


@pytest.mark.parametrize("cli", sorted(PLAIN))
def test_corrupt_output_raises_nothing(cli: str):
    chance = random.Random(3)
    lines = (RECORDED / cli / f"{PLAIN[cli]}.stdout").read_bytes().splitlines()
    for _ in range(300):
        parser = VENDOR_PROGRAMS[cli].make_parser(ProgramCall("m", Path(), Path(), Path(), streams=False))
        for line in [b"Welcome!", b"[" * 100_000, b'{"a": ' + b"[" * 100_000, *lines]:
            event = json.loads(line) if line.endswith(b"}") else None
            odd = json.dumps(broken(event, chance)).encode() if event and chance.random() < 0.3 else line
            assert isinstance(parser.add_line(odd), str)
        assert parser.usage is None or parser.usage.tokens_in < 10**12


def test_claude_streams_and_reports_its_cost():
    parser, texts = read("claude", "stream", streams=True)
    assert len(texts) > 1
    assert "".join(texts) == "so it goes on "
    assert parser.dollars is not None
    assert parser.dollars > 0


@pytest.mark.parametrize(
    ("cli", "case", "expected"),
    [("claude", "sub-window", CLAUDES), ("codex", "spent", datetime(2026, 12, 2, 2, 54, tzinfo=UTC))],
)
def test_the_output_states_when_a_limit_resets(cli: str, case: str, expected: datetime):
    parser, _ = read(cli, case)
    assert classify_failure(VENDOR_PROGRAMS[cli], parser.refusal) is Failure.LIMITED
    found = parse_reset_time(parser.refusal, expected - timedelta(hours=3))
    assert found == expected.timestamp()


def test_codex_answers_with_its_last_message():
    parser, texts = read("codex", "reasoning")
    assert len(texts) == 1
    assert parser.usage is not None
    assert parser.usage.tokens_reasoning


@pytest.mark.parametrize("cli", sorted(VENDOR_PROGRAMS))
@pytest.mark.parametrize(
    "line", ["{", "[]", "null", "{}", '{"type": 5}', '{"type":"result"}', "\x1b[?25l", "ä"]
)
def test_unexpected_lines_raise_nothing(cli: str, line: str):
    parser = VENDOR_PROGRAMS[cli].make_parser(ProgramCall("m", Path(), Path(), Path()))
    assert parser.add_line(line.encode()) == ""
    assert not parser.has_text


@pytest.mark.parametrize("cli", sorted(VENDOR_PROGRAMS))
def test_malformed_events_raise_nothing(cli: str):
    odd: list[Any] = [None, 1, "x", [], {}, True, {"text": 5, "type": []}, [{"type": "text", "text": 5}]]
    kinds = (
        *("result", "stream_event", "rate_limit_event", "item.completed", "turn.completed", "turn.failed"),
        *("error", "message", "init", "assistant", "text", "step_finish", "assistant.message_delta"),
        *("assistant.message", "assistant.usage", "session.error", "thread.started"),
    )
    fields = ("result", "usage", "event", "item", "error", "message", "stats", "part", "data", "content")
    fields += ("stop_reason", "session_id", "subtype", "is_error", "total_cost_usd", "severity", "status")
    for kind in kinds:
        for value in odd:
            parser = VENDOR_PROGRAMS[cli].make_parser(ProgramCall("m", Path(), Path(), Path(), streams=True))
            event = {"type": kind, "role": "assistant", "timestamp_ms": 1, **dict.fromkeys(fields, value)}
            assert isinstance(parser.add_line(json.dumps(event).encode()), str)
