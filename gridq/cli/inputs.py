"""What a command reads: the graph's file, the job's input, the folder of stages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exits import AsJson
from gridq.errors import ConfigError, GraphError, InvalidJson

__all__ = [  # noqa: RUF022 as they stand below
    "STDIN", "GraphFile", "StagesFolder", "AsJson",
    "read_graph", "of_file", "read_bytes", "read_input", "with_stages",
]  # fmt: skip

if TYPE_CHECKING:
    from gridq.protocol import Json
    from gridq.settings import Settings

STDIN = "-"

GraphFile = Annotated[
    str, typer.Argument(metavar="GRAPH", help="The graph's file; - reads stdin.", show_default=False)
]
StagesFolder = Annotated[
    Path | None,
    typer.Option(
        "--stages",
        metavar="DIR",
        help="A folder of stage files (*.json), instead of GRIDQ_STAGES_DIR.",
        show_default=False,
    ),
]


def read_graph(name: str) -> str:
    """The text of a graph's file. ConfigError: it cannot be read. InvalidJson: it is not UTF-8."""
    try:
        return read_bytes(name, "The graph").decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidJson("The graph is not UTF-8 text", {"path": name, "reason": str(exc)}) from None


@contextmanager
def of_file(name: str) -> Iterator[None]:
    """Within it, what is wrong with a graph is said to stand in the file `name`."""
    try:
        yield
    except GraphError as exc:
        exc.details["file"] = file = "stdin" if name == STDIN else name
        exc.details["path"] = f"{file}: {exc.path}" if exc.path else file
        raise


def read_bytes(name: str, what: str) -> bytes:
    """The content of a file, of stdin where `name` is `-`. ConfigError: it cannot be read."""
    try:
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{what} cannot be read",
            {
                "path": name,
                "reason": exc.strerror or str(exc),
                "fix": "name a file that you may read, or - for stdin",
            },
        ) from None


def read_input(text: str | None) -> Json:
    """The job's input: JSON text, `@file` or `-` for stdin; None (null) where it is not given."""
    if text is None:
        return None
    where = "--input"
    if text == STDIN:
        where = "stdin"
        data: str | bytes = read_bytes(STDIN, "The input")
    elif text.startswith("@"):
        where = text[1:]
        data = read_bytes(where, "The input")
    else:
        data = text
    try:
        return json.loads(
            data.decode("utf-8-sig") if isinstance(data, bytes) else data, parse_constant=_refuse
        )
    except RecursionError:
        raise ConfigError("The input is nested too deeply", {"path": where}) from None
    except ValueError as exc:
        raise ConfigError(
            "The input is not JSON",
            {
                "path": where,
                "reason": str(exc),
                "expected": 'JSON such as {"city": "Oslo"} or "a text", @FILE or - for stdin',
                "fix": _fix(text),
            },
        ) from None


def with_stages(config: Settings, folder: Path | None) -> Settings:
    """The settings with `--stages` in them. ConfigError: it is no folder."""
    if folder is None:
        return config
    if not folder.is_dir():
        raise ConfigError(
            f"{str(folder)!r} is not a folder", {"path": "--stages", "expected": "a folder of *.json files"}
        )
    return config.model_copy(update={"stages_dir": folder})


def _refuse(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


def _fix(text: str) -> str:
    """What `--input Oslo` and `--input notes.json` most likely were meant to be."""
    if text[:1].isalpha() and "'" not in text:
        return f"write --input @{text}" if Path(text).is_file() else f"write --input '{json.dumps(text)}'"
    return "correct the JSON there"
