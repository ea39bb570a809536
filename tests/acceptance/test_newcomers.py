"""Mistakes of a newcomer who has only read the docs: each is told with a code, its place and its fix."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gridq
from gridq.client import Client
from gridq.config.settings import Settings
from gridq.errors import GridError
from tests.builders import seq
from tests.builders import stage as st
from tests.grid_environment import environment, use_grid
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

STAGES = '''
from gridq import stage

@stage(input="Text", output="Text")
def shout(value):
    """Upper case."""
    return value.upper() + missing_name

@stage(input="Text")
def whisper(value):
    return value.lower()
'''


@pytest.fixture(scope="module")
def client(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "newcomer_stages.py").write_text(STAGES)
    config = Settings(
        broker_url=server.url, prefix=f"n{secrets.token_hex(3)}:", home=folder / "home", profiles=("llm",)
    )
    env = {"PYTHONPATH": str(folder), "GRIDQ_STAGES": "newcomer_stages"}
    with GridProcesses(config, ["local"], folder=folder / "logs", env=env), use_grid(config) as client:
        yield client


MISTAKES: dict[str, tuple[Callable[[Client], Any], str, str]] = {
    "a misspelt option": (
        lambda client: client.run({"root": st("llm_complete", prompt="Hi", max_token=5)}, timeout=60),
        "graph.invalid_field",
        "max_tokens",
    ),
    "a misspelt field": (
        lambda client: client.run({"root": {"op": "Stage", "id": "length", "configs": {}}}, timeout=60),
        "graph.invalid_field",
        "config",
    ),
    "a missing template": (
        lambda client: client.run(
            {"root": seq(st("format_json"), st("text_template", text="Hi"))}, timeout=60
        ),
        "graph.missing_field",
        "template",
    ),
    "an operator of another language": (
        lambda client: client.run({"root": {"op": "If", "condition": st("is_empty")}}, timeout=60),
        "graph.unknown_operator",
        "Branch",
    ),
    "a stage by its name": (
        lambda client: client.run({"root": {"op": "Stage", "name": "length"}}, timeout=60),
        "graph.missing_field",
        "'id'",
    ),
    "a task without delay": (
        lambda client: gridq.run_graph({"root": st("length")}, "a"),
        "config.invalid",
        "run_graph.delay",
    ),
    "a prompt without delay": (
        lambda client: gridq.complete(prompt="Hi"),
        "config.invalid",
        "complete.delay",
    ),
    "a job without a stream": (
        lambda client: list(client.stream(client.submit({"root": st("length")}, "a"))),
        "job.not_streamed",
        "stream=True",
    ),
    "a number for a text": (
        lambda client: client.run({"root": st("whisper")}, 7, timeout=60),
        "stage.wrong_type",
        "@stage",
    ),
    "a stage that raises": (
        lambda client: client.run({"root": st("shout")}, "a", timeout=60),
        "stage.failed",
        "gridq job",
    ),
    "a model that nobody has": (
        lambda client: client.run({"root": st("llm_complete", prompt="Hi")}, timeout=60),
        "seat.none_live",
        "gridq probe",
    ),
    "a misspelt job option": (
        lambda client: client.submit({"root": st("length")}, "a", priorty="batch"),
        "config.invalid",
        "'priority'",
    ),
    "a deadline in words": (
        lambda client: client.submit({"root": st("length")}, "a", deadline="5m"),
        "config.invalid",
        "300",
    ),
    "the name of a file": (
        lambda client: client.submit("graph.json"),
        "graph.not_json",
        "json.load",
    ),
    "a result for an id": (
        lambda client: gridq.result(gridq.run_graph.AsyncResult("j")),  # type: ignore[arg-type]
        "config.invalid",
        "result.id",
    ),
    "a host that is not allowed": (
        lambda client: client.run({"root": st("http_get", url="https://example.com/")}, timeout=60),
        "http.host_not_allowed",
        "GRIDQ_HTTP_ALLOW",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_a_graph_or_a_stage_is_told_with_its_fix(name: str, client: Client) -> None:
    act, code, fix = MISTAKES[name]
    with pytest.raises(GridError) as caught:
        act(client)
    error = caught.value
    assert (error.code, bool(error.path)) == (code, True)
    assert fix in (error.fix or "")


def run(client: Client, *arguments: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    """Run `gridq` on the client's grid, in an environment with `changes`."""
    given: dict[str, str | None] = {**os.environ, **environment(client.config), **changes}
    env = {name: value for name, value in given.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-m", "gridq.cli", *arguments],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_traceback_of_a_stage_is_in_gridq_job_and_in_the_workers_log(client: Client) -> None:
    job = client.submit({"root": st("shout")}, "a secret word")
    client.wait(job, 60)
    shown = run(client, "job", job)
    assert "newcomer_stages.py" in shown.stdout
    assert "NameError: name 'missing_name' is not defined" in shown.stdout
    logs = client.config.home.parent / "logs"
    text = "".join(path.read_text(errors="replace") for path in logs.rglob("*") if path.is_file())
    assert "newcomer_stages.py" in text
    assert "a secret word" not in text


SEATS = {
    "one bracket": ('[llm]\nname = "a"\nurl = "https://a.example/v1"\n[llm]\nname = "b"\n', "[[llm]]"),
    "a misspelt key": (
        '[[llm]]\nname = "a"\nurl = "https://a.example/v1"\nconcurency = 4\n',
        "'concurrency'",
    ),
    "a key in the file": ('[[llm]]\nname = "a"\nurl = "https://a.example/v1"\nkey = "sk-1"\n', "key_env"),
    "models as texts": ('[[llm]]\nname = "a"\nurl = "https://a.example/v1"\nmodels = ["m"]\n', "name = "),
    "no name": ('[[llm]]\nurl = "https://a.example/v1"\n', "'name'"),
    "a list of one seat": ("[[local]]\nconcurrency = 2\n", "[local]"),
    "a profile that is not there": ("[dataset]\nfolder = 'a'\n", "install"),
    "a misspelt table": ("[locl]\nconcurrency = 2\n", "'local'"),
}


@pytest.mark.parametrize("name", SEATS)
def test_a_mistake_in_the_seats_file_is_told_with_its_fix(name: str, client: Client, tmp_path: Path) -> None:
    text, fix = SEATS[name]
    (tmp_path / "seats.toml").write_text(text)
    done = run(client, "probe", "--json", GRIDQ_HOME=str(tmp_path))
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "config.invalid")
    assert error["details"]["path"]
    assert fix in error["details"]["fix"]


@pytest.mark.parametrize(
    "command", [("explain", "GRAPH"), ("quota",), ("audit",), ("keys", "list"), ("health",)]
)
def test_a_command_that_needs_the_server_says_so_where_only_a_gateway_is_set(
    command: tuple[str, ...], client: Client, tmp_path: Path
) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps({"root": st("length")}))
    arguments = [str(graph) if word == "GRAPH" else word for word in command]
    done = run(
        client, *arguments, "--json",
        GRIDQ_URL="http://127.0.0.1:1", GRIDQ_BROKER_URL=None, GRIDQ_HOME=str(tmp_path),
    )  # fmt: skip
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "config.invalid")
    assert (error["details"]["path"], "GRIDQ_BROKER_URL" in error["details"]["fix"]) == (
        "GRIDQ_BROKER_URL",
        True,
    )


def test_a_grid_without_a_router_says_what_to_start(server: EmbeddedServer, tmp_path: Path) -> None:
    config = Settings(
        broker_url=server.url, prefix=f"n{secrets.token_hex(3)}:", home=tmp_path, profiles=("llm",)
    )
    graph = {"root": st("length")}
    with use_grid(config) as client:
        for act in (
            lambda: client.run(graph, "a"),
            lambda: client.run(graph, "a", timeout=0.5, wait_for_seat=True),
            lambda: gridq.run_graph.delay(graph, "a").get(timeout=0.5),
        ):
            with pytest.raises(GridError) as caught:
                act()
            assert "gridq up" in (caught.value.fix or "")
            assert "no router is live" in (caught.value.reason or "")
        [queued] = client.jobs(state="queued")
        assert "no router is live" in run(client, "job", queued.job).stdout
