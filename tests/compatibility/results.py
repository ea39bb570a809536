"""The file of the outcomes, and the page that shows them.

`{client: {feature: {"test": "file::function", "cells": {seat: "worked" | {"refused": name}}}}}`
"""

from __future__ import annotations

import ast
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "compatibility.md"

SEATS = {
    "openai": "OpenAI chat",
    "engine": "OpenAI-shaped engine",
    "responses": "OpenAI Responses",
    "anthropic": "Anthropic",
    "google": "Google",
    "local": "local model",
}
"""The columns, by the name of the kind of seat."""

FEATURES = (
    "plain answer", "streamed answer", "system text", "several turns", "blank texts",
    "tool call", "streamed tool call", "tool loop", "parallel tools",
    "one tool at a time", "forced tool", "no tools",
    "tool runner", "legacy functions", "other endpoints' call ids", "long tool names",
    "structured output", "JSON mode",
    "image", "PDF", "audio",
    "reasoning", "reasoning round trip with tools",
    "stop texts", "token limit", "usage", "usage in a stream", "token count",
    "several choices", "log probabilities", "seed",
    "embeddings of text", "embeddings of tokens", "embeddings as base64",
    "background response", "cancelled response", "stored responses",
    "listed models", "one model",
    "rate limit", "bad request", "too long a context", "many at once",
)  # fmt: skip
"""The rows, in the order of the page."""

WORKED = "worked"


@dataclass(frozen=True)
class Refused:
    """The request was refused. `name` is the field that the error names, or the error's own stable code."""

    name: str

    def to_json(self) -> dict[str, str]:
        return {"refused": self.name}


Rows = dict[str, dict[str, dict[str, Any]]]


def load() -> Rows:
    """Return the results."""
    with _locked(fcntl.LOCK_SH):
        return _read()


_holds: list[int] = []
"""The mode of the lock that this process holds, if it holds it."""


@contextmanager
def _locked(mode: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Keep other processes from writing the results; also from reading them, unless `mode` is shared."""
    if _holds:  # another descriptor of the same process would wait for this one
        yield
        return
    with RESULTS.open("rb") as file:
        fcntl.flock(file, mode)
        _holds.append(mode)
        try:
            yield
        finally:
            _holds.pop()


def _read() -> Rows:
    rows: Rows = json.loads(RESULTS.read_text("utf-8"))
    return rows


def write_cell(client: str, feature: str, seat: str, outcome: str | dict[str, str], test: str) -> None:
    """Write one outcome into the results, and the page anew. All other cells stay as they are."""
    with _locked():
        rows = _read()
        row = rows.setdefault(client, {}).setdefault(feature, {"test": test, "cells": {}})
        row["test"] = test
        row["cells"][seat] = outcome
        _save(rows)


def remove_rows_without_tests() -> None:
    """Remove the rows whose test no longer exists."""
    with _locked():
        rows = _read()
        kept = {
            client: {feature: row for feature, row in features.items() if has_test(row["test"])}
            for client, features in rows.items()
        }
        _save({client: features for client, features in kept.items() if features})


def _save(rows: Rows) -> None:
    ordered = {
        client: {
            feature: {
                "test": row["test"],
                "cells": {seat: row["cells"][seat] for seat in SEATS if seat in row["cells"]},
            }
            for feature, row in sorted(rows[client].items(), key=lambda item: FEATURES.index(item[0]))
        }
        for client in sorted(rows, key=str.lower)
    }
    # the same file, because others may wait for its lock
    RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(render(ordered), "utf-8")


def has_test(test: str) -> bool:
    """Return whether the function of `file::function` is in its file."""
    name, _, function = test.partition("::")
    path = ROOT / name
    if not path.is_file():
        return False
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


HEAD = """\
# Compatibility

Which features of which clients work at which seats. The tests that run these clients through a
gateway, a grid and a seat write this page, and fail if an outcome changes. The columns are kinds of
seats: OpenAI's own chat API, other engines with that API, an endpoint with
[Responses](reference/http.md#responses), Anthropic's and Google's APIs, and a local model: SmolLM2
135M on a CPU, whose chat template has no tools. The other seats are local servers that accept and
refuse what the vendors' documents say.

- **worked**: the endpoint got what the client asked for, and the client got the answer in its own
  terms. A field that only advises the model, such as `seed`, may have no effect; then the header
  [`x-gridq-dropped-fields`](reference/http.md#response-headers) names it.
- a `name`: the request was refused with an error that names this field, or has this code.

[Fields of model requests](reference/request-fields.md) says which fields are translated, left out
and refused at which seat. To set up a client, see
[OpenAI and Anthropic clients](how-to/agent/model-clients.md).
"""


def render(rows: Rows) -> str:
    """Return the page."""
    parts = [HEAD]
    for client, features in rows.items():
        lines = [
            f"## {client}",
            "",
            f"| feature | {' | '.join(SEATS.values())} |",
            "|---|" + "---|" * len(SEATS),
        ]
        for feature, row in features.items():
            cells = (_show(row["cells"].get(seat)) for seat in SEATS)
            lines.append(f"| {feature} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _show(outcome: str | dict[str, str] | None) -> str:
    if isinstance(outcome, dict):
        return f"`{outcome['refused']}`"
    return outcome or ""
