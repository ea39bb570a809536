"""What a command prints: answers on stdout as they are, tables and progress within the terminal's width."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gridq.protocol import Json

_CONTROL = dict.fromkeys(c for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t")


def console(*, err: bool = False) -> Console:
    """A console that prints text as it is: no markup, so that `stages[2]` is no tag."""
    from rich.console import Console

    return Console(stderr=err, markup=False, highlight=False, emoji=False)


def plain_table(*columns: str, numbers: tuple[str, ...] = (), gap: int = 2) -> Table:
    """A table without lines, `gap` spaces between its columns; those among `numbers` stand to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0), show_edge=False)
    for name in columns:
        right = name in numbers
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def echo_answer(value: Json) -> None:
    """The answer on stdout: a text as it is, anything else as indented JSON.

    A terminal gets no control characters: an answer comes from elsewhere.
    """
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    if sys.stdout.isatty():
        text = text.translate(_CONTROL)
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def echo_json(value: Any) -> None:
    """JSON for programs, in ASCII, so that it survives every pipe."""
    typer.echo(json.dumps(value, indent=2))
