"""What is printed where."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from gridq.cli.commands.workers import format_state, make_full_table, make_seats_table, make_shared_table
from gridq.cli.output import (
    format_duration,
    format_local_time,
    format_money,
    format_span,
    make_console,
    make_table,
    print_answer,
    print_json,
    shorten_numbers,
)
from gridq.protocol.meters import Meter
from gridq.seats.registry import LiveSeat


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("a text\nof two lines", "a text\nof two lines\n"),
        ({"ü": [1]}, '{\n  "ü": [\n    1\n  ]\n}\n'),
        (None, "null\n"),
    ],
)
def test_a_text_as_it_is_anything_else_as_json(value: Any, printed: str, capsys: Any) -> None:
    print_answer(value)
    assert capsys.readouterr().out == printed


def test_half_a_surrogate_pair_can_be_printed(capsys: Any) -> None:
    print_answer(["\ud800"])
    assert json.loads(capsys.readouterr().out) == ["\ud800"]
    print_json({"a": "\ud800ü"})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == {"a": "\ud800ü"}


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_answer("a\x1b]0;title\x07b\n\tc")
    assert screen.getvalue() == "a]0;titleb\n\tc\n"


def test_seats_fit_a_narrow_terminal() -> None:
    seat = LiveSeat(
        seat="a-rather-long-machine-name-1f2e.cpu",
        machine="a-rather-long-machine-name-1f2e",
        worker="cpu@a-rather-long-machine-name-1f2e",
        incarnation="x",
        kind="gpu",
        concurrency=4,
        queues=["llm:smollm2-135m-instruct", "llm:any"],
        state="degraded",
        reason="the engine does not answer [2]",
        busy=2,
        meters=[Meter(account="own", resource="money", window="month", limit=2_000_000, used=500_000)],
        metrics={"free_mb": 512.0},
        started_at=time.time() - 7300,
    )
    for table, parts in (
        (make_seats_table, ("2/4", "2 h", "llm:any", "[2]")),
        (make_full_table, ("2/4", "$1.50", "$2.00", "[2]", "free_mb 512")),
    ):
        screen = Console(file=io.StringIO(), width=80, markup=False)
        screen.print(table([seat]))
        text = screen.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= 80
        for part in parts:
            assert part in text
    flat = seat.model_copy(update={"meters": []})
    flat = flat.model_copy(update={"capability": {"billing": "subscription"}})
    screen = Console(file=io.StringIO(), width=80)
    screen.print(make_full_table([flat]))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "subscription" in text
    assert "$" not in text
    assert format_state(seat) == "degraded: the engine does not answer [2]"
    since = seat.model_copy(update={"since": seat.started_at, "until": time.time() + 60})
    assert format_state(since).startswith(
        f"degraded since {format_local_time(since.since)} until {format_local_time(since.until or 0)}: "
    )


def test_what_seats_share_is_told_once() -> None:
    whole = Meter(account="g", resource="money", window="day", limit=9_000_000, used=500_000)
    owner = Meter(account="o:alice", resource="parallel", window="-", limit=3, reserved=1)
    family = Meter(account="f:meta%2Fllama", resource="requests", window="5h", limit=9, queues=("llm:any",))
    own = Meter(account="own", resource="tokens", window="week", limit=70)

    def seat(name: str, *meters: Meter) -> LiveSeat:
        return LiveSeat(
            seat=name, machine="m", worker=name, incarnation="x", kind="llm", concurrency=1, queues=["llm:any"],
            state="ready", busy=0, meters=list(meters), started_at=1.0,
        )  # fmt: skip

    seats = [seat("m.a", own, whole, owner, family), seat("m.b", whole, owner), seat("m.c", whole)]
    assert make_shared_table([seat("m.a", own)]) is None
    shared = make_shared_table(seats)
    assert shared is not None
    screen = Console(file=io.StringIO(), width=100, markup=False)
    screen.print(make_full_table(seats))
    screen.print(shared)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("$8.50 left of $9.00 a day") == 1
    assert re.search(r"^the whole grid .* every seat *$", text, re.M)
    assert re.search(r"^owner alice +2 stages left of 3 stages at once +- +m\.a *\n +m\.b *$", text, re.M)
    assert re.search(
        r"^family meta/llama +9 requests left of 9 requests in 5h +- +m\.a in llm:any *$", text, re.M
    )
    assert text.count("70 tokens left of 70 tokens a week") == 1


def test_a_terminal_gets_long_lists_of_numbers_in_short() -> None:
    short = shorten_numbers({"one": [0.5] * 384, "two": [[1, 2], ["a"] * 30]})
    assert short == {"one": "0.5, 0.5, 0.5, 0.5, … 384 numbers in all", "two": [[1, 2], ["a"] * 30]}


@pytest.mark.parametrize(
    ("ms", "text"), [(None, "-"), (0.04, "0.0 ms"), (12, "12 ms"), (1500, "1.5 s"), (125_000, "2 min")]
)
def test_durations(ms: float | None, text: str) -> None:
    assert format_duration(ms) == text


@pytest.mark.parametrize(
    ("micro", "text"),
    [(None, "-"), (0, "$0.00"), (1_500_000, "$1.50"), (12, "$0.000012"), (-5, "-$0.000005")],
)
def test_money(micro: int | None, text: str) -> None:
    assert format_money(micro) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (90_000, "1 d")]
)
def test_spans(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_a_pipe_has_each_row_in_one_line_unless_its_width_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, why = "llm:smollm2-135m-instruct", "its owner uses it " * 20
    for columns, whole in ((None, True), ("", True), ("60", False)):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        table = make_table("queue", "slots", "because", numbers=("slots",), keep_first=True)
        table.add_row(name, "4", why.strip())
        make_console().print(table)
        lines = capsys.readouterr().out.splitlines()
        assert (len(lines) == 3) is whole
        assert lines[2].startswith(f"{name}      4  its owner")
        assert why.strip() in lines[2] or not whole
