"""Handoff files: `<home>/.runtime/engines/<replica>.json` announces an engine that another program started.

The program writes the file once the engine is ready, under another name first, and renames it; it removes the
file when the engine ends. Fields: `url`; optional: `name` (else the file's), `models`, `concurrency` (or
`slots`), `key_file` and `silence`, as in `[[gpu.engines]]`. Others are ignored: they are for other readers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gridq.errors import ConfigError
from workers.profiles.gpu.running_engines.engine_table import EngineTable, parse_tables, read_port

FOLDER = Path(".runtime", "engines")
FIELDS = ("url", "name", "models", "concurrency", "key_file", "silence")
MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class Handoff:
    """One file: the engine's name and table, and a text that changes with what the file says."""

    name: str
    table: EngineTable
    announcement: str


class BrokenHandoff(ValueError):
    """The file announces no engine. The message says why."""


def read_handoffs(home: Path, taken: Collection[EngineTable]) -> tuple[list[Handoff], list[str]]:
    """Return the engines that files announce, and a sentence for each file that announces none.

    `taken` are the engines of the seats file, which have precedence.
    """
    found: list[Handoff] = []
    problems: list[str] = []
    names = {table.name for table in taken if table.name}
    ports = {read_port(table.root) for table in taken if table.url}
    for path in sorted((home / FOLDER).glob("*.json")):
        try:
            handoff = _read(path)
            if handoff.name in names or read_port(handoff.table.root) in ports:
                raise BrokenHandoff("its name or address is that of another engine")
        except FileNotFoundError:  # it has just gone
            continue
        except BrokenHandoff as exc:
            problems.append(f"The handoff file {path} announces no engine: {exc}")
            continue
        names.add(handoff.name)
        ports.add(read_port(handoff.table.root))
        found.append(handoff)
    return found, problems


def _read(path: Path) -> Handoff:
    try:
        raw = _read_bytes(path)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise BrokenHandoff(f"it cannot be read ({exc.strerror})") from None
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        raise BrokenHandoff("it is not JSON; write it under another name, then rename it") from None
    if not isinstance(fields, dict):
        raise BrokenHandoff("it is not a JSON object")
    table = {"name": path.stem.lower(), "concurrency": fields.get("slots")}
    table |= {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    if table["concurrency"] is None:
        del table["concurrency"]
    try:
        [engine] = parse_tables([table])
    except ConfigError as error:
        place = str(error.details.get("path", "")).rpartition(".")[2]
        raise BrokenHandoff(f"{place}: {error.details.get('reason') or error.message}") from None
    return Handoff(str(engine.name), engine, f"{path} {hashlib.sha256(raw).hexdigest()[:16]}")


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file, which may be reached by a symbolic link. Raises OSError, and
    BrokenHandoff for what is no file, such as a pipe, which would be waited for, or is too large.
    """
    path.stat()  # raises OSError, which `is_file` does not
    if not path.is_file():
        raise BrokenHandoff("it is not a file")
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise BrokenHandoff(f"it has more than {MAX_BYTES} bytes")
    return raw
