"""Read what a command is given: a graph, an input, a folder of stages, durations and times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.config.time_zones import require_zone
from gridq.errors import ConfigError, GraphError, InvalidJson
from gridq.protocol.durations import parse_duration

if TYPE_CHECKING:
    from gridq.config.settings import Settings
    from gridq.protocol.models import Json

STDIN = "-"

GraphArgument = Annotated[
    str, typer.Argument(metavar="GRAPH", help="File with the graph; - reads stdin.", show_default=False)
]
StagesOption = Annotated[
    Path | None,
    typer.Option(
        "--stages",
        metavar="DIR",
        help="Folder with stage files (*.json). Default: GRIDQ_STAGES_DIR.",
        show_default=False,
    ),
]


def read_graph(name: str) -> str:
    """Return the text of a graph's file.

    Raises ConfigError if it cannot be read, InvalidJson if it is not UTF-8.
    """
    try:
        return read_bytes(name, "The graph").decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidJson("The graph is not UTF-8 text", {"path": name, "reason": str(exc)}) from None


@contextmanager
def locate_graph_errors(name: str) -> Iterator[None]:
    """Add the file's name to the path of a GraphError that is raised within the block."""
    try:
        yield
    except GraphError as exc:
        exc.details["file"] = file = "stdin" if name == STDIN else name
        exc.details["path"] = f"{file}: {exc.path}" if exc.path else file
        raise


def read_bytes(name: str, what: str) -> bytes:
    """Return the content of a file, or of stdin if `name` is `-`. Raises ConfigError if it cannot be read.

    `what` names the content in the error, such as `The graph`.
    """
    try:
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{what} cannot be read",
            {
                "path": name,
                "reason": exc.strerror or str(exc),
                "fix": "name a file that you can read, or - for stdin",
            },
        ) from None


def read_input(text: str | None) -> Json:
    """Return the job's input from JSON text, from `@FILE`, or from stdin for `-`; None for None."""
    if text is None:
        return None
    from gridq.graph.source import find_duplicate

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
        value = json.loads(
            data.decode("utf-8-sig") if isinstance(data, bytes) else data, parse_constant=_reject_constant
        )
        doubled = find_duplicate(data)
        if doubled is not None:
            raise ValueError(f"the key {doubled[1][:100]!r} appears twice in one object")
        return value
    except RecursionError:
        raise ConfigError("The input is nested too deeply", {"path": where}) from None
    except ValueError as exc:
        raise ConfigError(
            "The input is not JSON",
            {
                "path": where,
                "reason": str(exc),
                "expected": 'JSON such as {"city": "Oslo"} or "a text", or @FILE, or - for stdin',
                "fix": _suggest_fix(text),
            },
        ) from None


def apply_stages_option(config: Settings, folder: Path | None) -> Settings:
    """Return the settings with the folder of `--stages`. Raises ConfigError if it is not a folder."""
    if folder is None:
        return config
    if not folder.is_dir():
        raise ConfigError(
            f"{str(folder)!r} is not a folder", {"path": "--stages", "expected": "a folder of *.json files"}
        )
    return config.model_copy(update={"stages_dir": folder})


def _reject_constant(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


def _suggest_fix(text: str) -> str:
    """Return a fix for common mistakes: `--input Oslo` without quotes, `--input notes.json` without the @."""
    if text[:1].isalpha() and "'" not in text:
        return f"write --input @{text}" if Path(text).is_file() else f"write --input '{json.dumps(text)}'"
    return "correct the JSON"


def parse_seconds(text: str, option: str, minimum: float, maximum: float) -> float:
    """Parse a duration such as `90`, `30m`, `1h` or `2d` into seconds.

    Raises ConfigError if it is not one, or not from `minimum` to `maximum` seconds.
    """
    seconds = parse_duration(text)
    if seconds is None or not minimum <= seconds <= maximum:
        raise ConfigError(
            f"{text!r} is not a valid duration for {option}",
            {"path": option, "expected": f"{minimum:g}s to {maximum / 86_400:g}d, such as 30m, 1h or 2d"},
        )
    return seconds


def parse_instant(text: str | None, option: str, zone: str, now: int) -> int | None:
    """Parse a date, a time, or a duration before `now` such as `12h`, into ms since 1970. None stays None.

    Dates and times without an offset are in the time zone `zone`. Raises ConfigError if it is none of these.
    """
    if text is None:
        return None
    from datetime import datetime

    if text.strip()[-1:].isalpha() and parse_duration(text) is not None:
        return now - int(parse_seconds(text, option, 0, 36_500 * 86_400) * 1000)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a valid time for {option}",
            {
                "path": option,
                "expected": "a time such as 2026-11-01 or 2026-11-01T08:00, or a duration such as 12h or 7d",
            },
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=require_zone(zone))).timestamp() * 1000)
