"""Print answers, JSON and tables, and format durations, times and money.

Tables fit the width of the terminal. In a pipe or a file no line is broken.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from gridq.protocol.money import format_dollars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gridq.protocol.models import Json

MAX_NUMBERS = 24
"""The longest list of numbers that a terminal gets in full: an embedding has hundreds."""

PIPE_COLUMNS = 10_000
"""The width without a terminal: scripts look for whole names in one line."""

_CONTROL = dict.fromkeys(c for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t")


def make_console(*, err: bool = False) -> Console:
    """Return a console that prints text as it is, without markup: `stages[2]` is not a tag.

    The environment variable COLUMNS overrides the width of the terminal.
    """
    from rich.console import Console

    console = Console(stderr=err, markup=False, highlight=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = PIPE_COLUMNS
    return console


def make_table(*columns: str, numbers: tuple[str, ...] = (), keep_first: bool = False, gap: int = 2) -> Table:
    """Return a table without lines, with `gap` spaces between its columns.

    The columns in `numbers` are aligned right. With `keep_first`, the first column is never broken, because
    readers copy from it.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0), show_edge=False)
    for name in columns:
        is_number = name in numbers
        no_wrap = is_number or (keep_first and name == columns[0])
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=no_wrap)
    return table


def print_answer(value: Json) -> None:
    """Print an answer on stdout: text as it is, anything else as indented JSON.

    On a terminal, control characters are removed (the answer comes from another machine) and long lists of
    numbers are cut. A pipe, or `--json`, gets everything.
    """
    terminal = sys.stdout.isatty()
    if not isinstance(value, str):
        value = json.dumps(shorten_numbers(value) if terminal else value, indent=2, ensure_ascii=False)
    text = value.translate(_CONTROL) if terminal else value
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def shorten_numbers(value: Json) -> Json:
    """Return `value` with every long list of numbers cut to the first four and their count."""
    if isinstance(value, dict):
        return {name: shorten_numbers(item) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > MAX_NUMBERS and all(isinstance(item, int | float) for item in value):
        return ", ".join(f"{item:g}" for item in value[:4]) + f", … {len(value)} numbers in all"
    return [shorten_numbers(item) for item in value]


def label_stage(path: str, name: str) -> str:
    """Return a stage's name after the branch or binding that its path is in: `summary/llm_chat`."""
    from gridq.telemetry.narration import enclosing_name

    place = enclosing_name(path)
    return f"{place}/{name}" if place else name


def format_count(number: int, noun: str) -> str:
    """Return `1 stage` or `2 stages`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_span(seconds: float) -> str:
    """Format a span of seconds in its largest unit: `45 s`, `3 min`, `5 h`, `12 d`."""
    seconds = max(seconds, 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def format_duration(ms: float | None) -> str:
    """Format a duration in ms: `0.4 ms`, `120 ms`, `2.5 s`, `3 min`; a dash for None."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else format_span(ms / 1000)


def format_money(micro_dollars: int | None) -> str:
    """Format money: `$1.50`, `$0.000012`; a dash for None."""
    return "-" if micro_dollars is None else format_dollars(micro_dollars)


def format_local_time(at: float) -> str:
    """Format a Unix time in this machine's time zone: `14:03:07`, with the date unless it is today."""
    today = time.strftime("%Y-%m-%d", time.localtime())
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return text.removeprefix(today + " ")


def format_zone_time(ms: int | None, zone: str) -> str | None:
    """Format a Unix time in ms in the time zone `zone`: `2026-11-28 13:15`; None stays None."""
    from gridq.protocol.calendar import format_iso_time

    text = format_iso_time(ms, zone)
    return None if text is None else text[:16].replace("T", " ")


def print_json(value: Any) -> None:
    """Print indented JSON on stdout, in ASCII, so that it survives every pipe."""
    typer.echo(json.dumps(value, indent=2))
