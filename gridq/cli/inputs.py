"""What a command reads: the graph's file, the job's input, the folder of stages."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.config.time_zones import needed
from gridq.errors import ConfigError, GraphError, InvalidJson

if TYPE_CHECKING:
    from gridq.config.settings import Settings
    from gridq.protocol.models import Json

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


UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str, option: str, least: float, most: float) -> float:
    """A time such as `90`, `30m`, `1h` or `2d` in seconds, `least` to `most`. ConfigError: it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d)?", text.strip())
    seconds = float(match[1]) * UNITS[match[2] or ""] if match else -1.0
    if not least <= seconds <= most:
        raise ConfigError(
            f"{text!r} is no time for {option}",
            {"path": option, "expected": f"from {least:g}s to {most / 86_400:g}d, such as 30m, 1h or 2d"},
        )
    return seconds


def instant_of(text: str | None, option: str, zone: str, now: int) -> int | None:
    """An instant in ms since 1970: a date or a time of the zone `zone`, unless it names an offset of its own,
    or a span such as `12h` before `now`. None stays None. ConfigError: it is none.
    """
    if text is None:
        return None
    from datetime import datetime

    if re.fullmatch(r"\d+(?:\.\d+)? ?(s|min|m|h|d)", text.strip()):
        return now - int(seconds_of(text, option, 0, 36_500 * 86_400) * 1000)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{text!r} is no time for {option}",
            {
                "path": option,
                "expected": "a time such as 2026-11-01 or 2026-11-01T08:00, or a span such as 12h or 7d",
            },
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=needed(zone))).timestamp() * 1000)
