"""Real clients of OpenAI's Responses at a gateway: OpenAI Agents, pydantic-ai, LangChain and the AI SDK, each
with a seat that has Responses and with seats of other API formats.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.integration.gateway.test_responses import SEATS, Seat, run_seat
from tests.real_programs.installing import install_npm, install_python
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = [pytest.mark.clis, pytest.mark.timeout(900)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=list(SEATS))
def seat(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seat]:
    """A seat of each kind in turn."""
    yield from run_seat(request.param, server, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def chat_seat(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seat]:
    yield from run_seat("openai", server, tmp_path_factory.mktemp("home"))


def run(*argv: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Run a program and return its output."""
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd or HERE), **variables}
    ran = subprocess.run(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout.decode()[-2000:] + ran.stderr.decode()[-2000:]
    return ran.stdout.decode()


def test_python_packages_get_their_answers(seat: Seat) -> None:
    python = install_python("python_sdks")
    made = json.loads(run(python, HERE / "python_sdks" / "ask.py", f"{seat.url}/v1", "echo"))
    expected = {"first": "so it goes on", "streamed": "so it goes on", "second": "and on", "cities": []}
    assert made == dict.fromkeys(("agents", "pydantic-ai", "langchain"), expected)


def test_python_packages_run_their_tools(chat_seat: Seat) -> None:
    assert isinstance(chat_seat.api, OpenAIServer)
    chat_seat.api.call = {"name": "weather", "arguments": '{"city":"Bern"}'}
    python = install_python("python_sdks")
    made = json.loads(run(python, HERE / "python_sdks" / "ask.py", f"{chat_seat.url}/v1", "agent"))
    for name, answers in made.items():
        assert answers["first"] == answers["second"] == "sun in Bern", name
        assert set(answers["cities"]) == {"Bern"}, name
    assert made["agents"]["streamed"] == "sun in Bern"


def run_ai_sdk(seat: Seat, model: str) -> dict[str, Any]:
    folder = install_npm("ai_sdk")
    answers: dict[str, Any] = json.loads(
        run("node", HERE / "ai_sdk" / "ask.mjs", folder, f"{seat.url}/v1", model)
    )
    return answers


def test_the_ai_sdk_gets_its_answers(seat: Seat) -> None:
    answers = run_ai_sdk(seat, "echo")
    assert (answers["first"], answers["streamed"], answers["second"]) == (
        "so it goes on",
        "so it goes on",
        "and on",
    )
    assert "store" in answers["refused"]


def test_the_ai_sdk_runs_its_tools(chat_seat: Seat) -> None:
    assert isinstance(chat_seat.api, OpenAIServer)
    chat_seat.api.call = {"name": "weather", "arguments": '{"city":"Bern"}'}
    answers = run_ai_sdk(chat_seat, "agent")
    assert (answers["first"], answers["streamed"], answers["second"]) == ("sun in Bern",) * 3
    assert set(answers["cities"]) == {"Bern"}
