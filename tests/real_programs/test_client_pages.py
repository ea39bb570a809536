"""The pages of libraries in docs/how-to/agent/clients: their own code works at every kind of seat.

Only the base URL, the key and the names of models are replaced in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.matrix import VAGUE, Matrix, read_refused_name
from tests.compatibility.results import SEATS, WORKED, Refused
from tests.compatibility.seats import Seat, run_seat
from tests.real_programs.installing import install_npm, install_python
from tests.real_programs.page_blocks import PAGES
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = [pytest.mark.clis, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
WAIT_SECONDS = 120.0
"""How long one block may take. The local model answers slowly on a busy machine."""

QUOTAS = """
[models]
"claude-sonnet-4-0" = "llm:{model}"
"""
"""A name that LlamaIndex's class for Anthropic accepts, as its page says."""

PYTHON, OPENAI_2, NODE = "python_sdks", "python_sdks_openai_2", "ai_sdk"


SECTIONS = {
    "Ask": ("plain answer", "system text", "usage"),
    "Stream": ("streamed answer", "usage in a stream"),
    "Call tools": ("tool loop",),
    "Hand off": (),
    "Structured output": ("structured output",),
    "Structured output by a tool": ("forced tool",),
    "Embeddings": ("embeddings of text",),
}
"""The features in the matrix of a page's section."""

WITHOUT_USAGE = {**SECTIONS, "Ask": ("plain answer", "system text"), "Stream": ("streamed answer",)}
"""The same for a page that does not print what was used."""


@dataclass(frozen=True)
class Client:
    """A client in the matrix: the page, its block of the section "Set up", and the packages that it needs.

    `left_out` are sections for other clients of the page, and `model` the model to name at every seat.
    """

    page: str
    setup: int
    packages: str
    left_out: tuple[str, ...] = ()
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SECTIONS)
    model: str = ""

    def read_blocks(self) -> dict[str, str]:
        """Return the blocks of the page by their headings, each with the set-up before it."""
        language = "js" if self.packages == NODE else "python"
        found: dict[str, list[str]] = {}
        for section in re.split(r"^## ", (PAGES / f"{self.page}.md").read_text("utf-8"), flags=re.M)[1:]:
            blocks = re.findall(rf"^```{language}\n(.*?)^```", section, re.M | re.S)
            found[section.partition("\n")[0]] = blocks
        setup = found.pop("Set up")[self.setup]
        return {
            heading: f"{setup}\n{blocks[0]}"
            for heading, blocks in found.items()
            if heading in self.sections and heading not in self.left_out and blocks
        }


BY_MODES = {
    "By a tool": ("forced tool",),
    "By a JSON schema": ("structured output",),
}
CLIENTS = {
    "LangChain, chat": Client("langchain", 0, PYTHON),
    "LangChain, Responses": Client("langchain", 1, PYTHON),
    "LangChain, Messages": Client("langchain", 2, PYTHON, left_out=("Embeddings",)),
    "LlamaIndex, chat": Client("llamaindex", 0, OPENAI_2, sections=WITHOUT_USAGE),
    "LlamaIndex, Responses": Client("llamaindex", 1, OPENAI_2, sections=WITHOUT_USAGE),
    "LlamaIndex, Messages": Client(
        "llamaindex", 2, OPENAI_2, ("Structured output", "Embeddings"), WITHOUT_USAGE, "claude-sonnet-4-0"
    ),
    "pydantic-ai, chat": Client("pydantic-ai", 0, PYTHON),
    "pydantic-ai, Responses": Client("pydantic-ai", 1, PYTHON),
    "pydantic-ai, Messages": Client("pydantic-ai", 2, PYTHON, left_out=("Structured output",)),
    "OpenAI Agents SDK, Responses": Client("openai-agents", 0, PYTHON),
    "OpenAI Agents SDK, chat": Client("openai-agents", 1, PYTHON),
    "instructor, chat": Client("instructor", 0, OPENAI_2, sections=BY_MODES),
    "instructor, Messages": Client(
        "instructor", 1, OPENAI_2, sections={"By a tool, as Anthropic's client": ("forced tool",)}
    ),
    "AI SDK, OpenAI-compatible": Client("ai-sdk", 0, NODE),
    "AI SDK, chat": Client("ai-sdk", 1, NODE),
    "AI SDK, Responses": Client("ai-sdk", 2, NODE),
    "AI SDK, Messages": Client("ai-sdk", 3, NODE, left_out=("Embeddings",)),
}


class BlockRunner:
    """A process that runs blocks of code, one after another, and so imports its packages once."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str) -> dict[str, Any]:
        """Run a block. Returns what it printed, and its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        overtime = threading.Timer(WAIT_SECONDS, self._process.kill)
        overtime.start()
        try:
            line = self._process.stdout.readline()
        finally:
            overtime.cancel()
        assert line, f"no answer within {WAIT_SECONDS} s, or the process ended"
        outcome: dict[str, Any] = json.loads(line)
        return outcome


@contextmanager
def start_runner(packages: str, folder: Path) -> Iterator[BlockRunner]:
    """Start the runner of a set of packages, with `folder` for its home."""
    if packages == NODE:
        (folder / "node_modules").symlink_to(install_npm(NODE) / "node_modules")
        argv: list[str | Path] = ["node", HERE / "ai_sdk" / "run_blocks.mjs", folder]
    else:
        argv = [install_python(packages), HERE / "python_sdks" / "run_blocks.py"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONWARNINGS": "ignore", "DO_NOT_TRACK": "1"}
    with (folder / "stderr").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    with process:  # which closes its pipes
        try:
            yield BlockRunner(process)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], BlockRunner]]:
    """Return the runner of a set of packages; it starts at its first use."""
    started: dict[str, BlockRunner] = {}
    with ExitStack() as stack:

        def find_runner(packages: str) -> BlockRunner:
            if packages not in started:
                folder = tmp_path_factory.mktemp(packages)
                started[packages] = stack.enter_context(start_runner(packages, folder))
            return started[packages]

        yield find_runner


@pytest.fixture(scope="module", params=list(SEATS))
def seat(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seat]:
    """Each kind of seat in turn, with an alias."""
    yield from run_seat(request.param, server, tmp_path_factory.mktemp("home"), QUOTAS)


def replace_names(code: str, seat: Seat, model: str) -> str:
    """Replace what a reader of the page would replace: the gateway, the key and the models."""
    for word, value in (
        ("http://127.0.0.1:8080", seat.url),
        ("none", seat.key),
        ("any", model or seat.model),
        ("text-embedding-3-small", seat.embedder),
    ):
        code = re.sub(rf"(?<=['\"]){re.escape(word)}(?=['\"/])", value, code)
    return code


def check(heading: str, printed: str, seat: Seat, *, shows_usage: bool) -> None:
    """Check what a block printed, and what the endpoint got for it.

    With `shows_usage` there is a second line with a number of tokens.
    """
    text, _, rest = printed.strip().partition("\n")
    assert text, "the block printed nothing"
    if shows_usage:
        assert int(rest) > 0
    if heading == "Embeddings":
        assert int(text) > 1
        return
    if seat.is_local:
        return
    if heading in ("Ask", "Stream"):
        assert text.strip() == "Name a colour."
        assert seat.sent.texts == [("user", "Name a colour.")]
        assert seat.sent.stream or heading == "Ask"
        assert "Be brief." in seat.sent.system or heading == "Stream"
    elif heading == "Call tools":
        assert text.strip() == "It is sunny in Bern."
        results = [result.text for turn in seat.sent.turns for result in turn.results]
        assert "It is sunny in Bern." in " ".join(results)
    elif heading == "Hand off":
        assert text == "expert"
    else:
        assert "Bern" in text
        assert "capital" in find_schema(heading, seat)["properties"]


def find_schema(heading: str, seat: Seat) -> dict[str, Any]:
    """Return the schema of the answer that the endpoint got, that of a forced tool or its own."""
    if "tool" not in heading and seat.sent.schema is not None:
        return seat.sent.schema
    assert seat.sent.choice in (*seat.sent.tools, "required")
    return next(iter(seat.sent.tools.values()))


@pytest.mark.parametrize("name", CLIENTS)
def test_the_code_of_a_page(
    matrix: Matrix, seat: Seat, name: str, runners: Callable[[str], BlockRunner]
) -> None:
    client = CLIENTS[name]
    faults = []
    for heading, code in client.read_blocks().items():
        ran = runners(client.packages).run(replace_names(code, seat, client.model))
        error, features = ran["error"], client.sections[heading]
        try:
            if error is None:
                check(heading, ran["printed"], seat, shows_usage="usage" in str(features))
                for feature in features:
                    matrix.state(name, feature, seat.kind, WORKED)
                continue
            refused = read_refused_name(error["status"], error["body"])
            assert refused not in VAGUE, error
            for feature in features:
                matrix.state(name, feature, seat.kind, Refused(refused))
        except AssertionError as failed:
            faults.append(f"{heading}: {failed}\n{ran}")
    assert not faults, "\n\n".join(faults)
