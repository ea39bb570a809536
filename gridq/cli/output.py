"""What a command prints: answers on stdout as they are, tables and progress within the terminal's width; into
a pipe or a file no line is broken.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from gridq.protocol.money import dollars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gridq.protocol.models import Json

LONG = 24
"""Numbers of one list that a terminal is shown at most: an embedding has hundreds."""

PIPED = 10_000
"""Columns where there is no terminal: whoever reads a table there looks for whole names in a line."""

_CONTROL = dict.fromkeys(c for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t")


def console(*, err: bool = False) -> Console:
    """A console that prints text as it is: no markup, so that `stages[2]` is no tag. COLUMNS goes before the
    width that it finds.
    """
    from rich.console import Console

    console = Console(stderr=err, markup=False, highlight=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = PIPED
    return console


def plain_table(*columns: str, numbers: tuple[str, ...] = (), named: bool = False, gap: int = 2) -> Table:
    """A table without lines, `gap` spaces between its columns; those among `numbers` stand to the right.
    Where the first column is `named`, it has what a reader copies, and others are broken for it.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0), show_edge=False)
    for name in columns:
        right = name in numbers
        whole = right or (named and name == columns[0])
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    return table


def echo_answer(value: Json) -> None:
    """The answer on stdout: a text as it is, anything else as indented JSON.

    A terminal gets no control characters, for an answer comes from elsewhere, and of a long list of numbers
    only the first; `--json` or a pipe gets all.
    """
    terminal = sys.stdout.isatty()
    if not isinstance(value, str):
        value = json.dumps(shortened(value) if terminal else value, indent=2, ensure_ascii=False)
    text = value.translate(_CONTROL) if terminal else value
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def shortened(value: Json) -> Json:
    """`value` with every long list of numbers cut to its first few, and how many there were."""
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > LONG and all(isinstance(item, int | float) for item in value):
        return ", ".join(f"{item:g}" for item in value[:4]) + f", … {len(value)} numbers in all"
    return [shortened(item) for item in value]


def span(seconds: float) -> str:
    """A time span in its largest unit: `45 s`, `3 min`, `5 h`, `12 d`."""
    seconds = max(seconds, 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def took(ms: float | None) -> str:
    """A duration: `0.4 ms`, `120 ms`, `2.5 s`, then as `span`; a dash where it is not known."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else span(ms / 1000)


def amount(micro_dollars: int | None) -> str:
    """Money: `$1.50`, `$0.000012`; a dash where there is none to tell."""
    return "-" if micro_dollars is None else dollars(micro_dollars)


def clock(at: float) -> str:
    """A time of this machine's zone: `14:03:07`, with the date where that is not today."""
    today = time.strftime("%Y-%m-%d", time.localtime())
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return text.removeprefix(today + " ")


def minute(ms: int | None, zone: str) -> str | None:
    """A time of the server's in the time zone `zone`, as tables show it: `2026-11-28 13:15`."""
    from gridq.protocol.calendar import text_time

    text = text_time(ms, zone)
    return None if text is None else text[:16].replace("T", " ")


def echo_json(value: Any) -> None:
    """JSON for programs, in ASCII, so that it survives every pipe."""
    typer.echo(json.dumps(value, indent=2))
