"""Output on terminals and pipes."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from gridq.cli.output import (
    format_duration,
    format_money,
    format_span,
    make_console,
    make_table,
    print_answer,
    print_json,
    shorten_numbers,
)


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("a text\nof two lines", "a text\nof two lines\n"),
        ({"ü": [1]}, '{\n  "ü": [\n    1\n  ]\n}\n'),
        (None, "null\n"),
    ],
)
def test_text_is_printed_verbatim_and_other_values_as_json(value: Any, printed: str, capsys: Any) -> None:
    print_answer(value)
    assert capsys.readouterr().out == printed


def test_a_lone_surrogate_can_be_printed(capsys: Any) -> None:
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


def test_long_lists_of_numbers_are_cut() -> None:
    short = shorten_numbers({"one": [0.5] * 384, "two": [[1, 2], ["a"] * 30]})
    assert short == {"one": "0.5, 0.5, 0.5, 0.5, … 384 numbers in all", "two": [[1, 2], ["a"] * 30]}


@pytest.mark.parametrize(
    ("ms", "text"), [(None, "-"), (0.04, "0.0 ms"), (12, "12 ms"), (1500, "1.5 s"), (125_000, "2 min")]
)
def test_format_duration_picks_the_unit(ms: float | None, text: str) -> None:
    assert format_duration(ms) == text


@pytest.mark.parametrize(
    ("micro", "text"),
    [(None, "-"), (0, "$0.00"), (1_500_000, "$1.50"), (12, "$0.000012"), (-5, "-$0.000005")],
)
def test_format_money_is_exact(micro: int | None, text: str) -> None:
    assert format_money(micro) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (90_000, "1 d")]
)
def test_format_span_picks_the_unit(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_a_pipe_gets_one_line_per_row_unless_columns_is_set(
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
