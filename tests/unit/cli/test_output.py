"""What is printed where."""

from __future__ import annotations

import io
import json
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from gridq.cli.output import echo_answer, echo_json
from gridq.cli.workers import seats_table, span
from gridq.protocol import Advertisement


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("a text\nof two lines", "a text\nof two lines\n"),
        ({"ü": [1]}, '{\n  "ü": [\n    1\n  ]\n}\n'),
        (None, "null\n"),
    ],
)
def test_a_text_as_it_is_anything_else_as_json(value: Any, printed: str, capsys: Any) -> None:
    echo_answer(value)
    assert capsys.readouterr().out == printed


def test_half_a_surrogate_pair_can_be_printed(capsys: Any) -> None:
    echo_answer(["\ud800"])
    assert json.loads(capsys.readouterr().out) == ["\ud800"]
    echo_json({"a": "\ud800ü"})
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
    echo_answer("a\x1b]0;title\x07b\n\tc")
    assert screen.getvalue() == "a]0;titleb\n\tc\n"


def test_seats_fit_a_narrow_terminal() -> None:
    seat = Advertisement(
        seat="a-rather-long-machine-name-1f2e.cpu",
        machine="a-rather-long-machine-name-1f2e",
        worker="cpu@a-rather-long-machine-name-1f2e",
        incarnation="x",
        kind="gpu",
        lanes=4,
        queues=["llm:smollm2-135m-instruct", "llm:any"],
        state="degraded",
        reason="the engine does not answer [2]",
        started_at=time.time() - 7300,
    )
    screen = Console(file=io.StringIO(), width=80, markup=False)
    screen.print(seats_table([seat], {seat.seat: 2}))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    for part in ("2/4", "2 h", "llm:any", "[2]"):
        assert part in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (90_000, "1 d")]
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text
