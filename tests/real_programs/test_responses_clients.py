"""Real clients of OpenAI's Responses at a gateway: the Codex CLI, OpenAI Agents, pydantic-ai, LangChain and
the AI SDK, each with a seat that has Responses and with seats of other API formats.
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
from tests.real_programs.installing import install_npm, install_python, program
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


def run_codex(seat: Seat, folder: Path, model: str, prompt: str, *options: str) -> str:
    """Run `codex exec` with the grid as its provider. Returns its last message."""
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'model = "{model}"\nmodel_provider = "gridq"\nweb_search = "disabled"\n'
        f'[model_providers.gridq]\nname = "gridq"\nbase_url = "{seat.url}/v1"\nwire_api = "responses"\n'
        'env_key = "GRIDQ_KEY"\nrequest_max_retries = 0\nstream_max_retries = 0\n'
    )
    last = folder / "last"
    argv = [
        program("codex"),
        "exec",
        "--skip-git-repo-check",
        "--output-last-message",
        last,
        *options,
        prompt,
    ]
    run(*argv, cwd=folder, CODEX_HOME=str(home), GRIDQ_KEY="none")
    return last.read_text().strip()


def test_codex_gets_its_answer(seat: Seat, tmp_path: Path) -> None:
    # Codex says more before the prompt, and some API formats join what a user says in a row
    assert run_codex(seat, tmp_path, "echo", "so it goes on").endswith("so it goes on")


def test_codex_runs_the_command_of_a_chat_model(chat_seat: Seat, tmp_path: Path) -> None:
    assert isinstance(chat_seat.api, OpenAIServer)
    chat_seat.api.call = {"name": "exec_command", "arguments": json.dumps({"cmd": "echo $((6 * 7)) apples"})}
    options = ("--dangerously-bypass-approvals-and-sandbox",)
    assert "42 apples" in run_codex(chat_seat, tmp_path, "agent", "count them", *options)
    sent = chat_seat.sent["messages"]
    assert [message["role"] for message in sent[-2:]] == ["assistant", "tool"]
    assert "multi_agent" in str([tool["function"]["name"] for tool in chat_seat.sent["tools"]])


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
