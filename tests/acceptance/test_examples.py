"""Run the programs in examples/ on one real grid, as a reader would."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.store.connection import connect
from tests.fakes.openai_server import OpenAIServer
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

EXAMPLES = Path(__file__).parents[2] / "examples"
MAX_LINES = 60
"""The length of a small profile in lines, without docstrings and blank lines."""

SEATS = """
[[llm]]
name = "api"
url = "{url}"
allow_loopback = true
models = [{{ name = "echo" }}]

[dataset]
folder = "{data}"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the example's profile."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLES / "own_profile", folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(folder / "site"), str(source)], check=True
    )
    return folder / "site"


@pytest.fixture(scope="module")
def environment(
    server: EmbeddedServer, installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """An agent's environment, beside a grid with a model, own stages and the example's profile."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "home").mkdir()
    (folder / "data").mkdir()
    (folder / "data" / "orders.csv").write_text("item,count\nbolt,3\nnut,4\n")
    with OpenAIServer() as api:
        seats = SEATS.format(url=api.url, data=folder / "data")
        (folder / "home" / "seats.toml").write_text(seats)
        config = Settings(
            broker_url=server.url, prefix=f"e{secrets.token_hex(3)}:", home=folder / "home",
            profiles=("llm", "dataset"),
        )  # fmt: skip
        path = {"PYTHONPATH": os.pathsep.join((str(EXAMPLES), str(installed)))}
        grid = GridProcesses(
            config,
            ["local", "api", "datasets"],
            folder=folder / "logs",
            env={**path, "GRIDQ_STAGES": "own_stage"},
        )
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("GRIDQ_", "OPENAI_"))
        }
        with grid:
            yield {
                **env,
                "GRIDQ_BROKER_URL": server.url, "GRIDQ_PREFIX": config.prefix, "PYTHONPATH": str(installed),
                "GRIDQ_HOME": str(folder / "agent"), "GRIDQ_PROFILES": "llm,dataset",
            }  # fmt: skip
    with connect(server.url) as client:
        for key in client.scan_iter(f"{config.prefix}*", count=1000):
            client.unlink(key)


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=EXAMPLES.parent,
    )


def test_agent(environment: dict[str, str]) -> None:
    done = run(environment, "examples/agent.py")
    assert (done.returncode, done.stdout) == (0, "Hello Ada, and so long Ada!\n"), done.stderr


def test_agent_reports_an_invalid_graph(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text('{"root": {"op": "Stage", "id": "text_templat"}}')
    (tmp_path / "input.json").write_text("{}")
    done = run(environment, "examples/agent.py", str(tmp_path / "graph.json"), str(tmp_path / "input.json"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "text_template" in done.stderr


def test_fanout_shows_the_pieces_of_each(environment: dict[str, str]) -> None:
    done = run(environment, "examples/fanout.py", "apples", "pears")
    assert done.returncode == 0, done.stderr
    for topic in ("apples", "pears"):
        pieces = re.findall(rf"^ +{topic} \| (.+)$", done.stdout, re.MULTILINE)
        assert len(pieces) >= 1
        assert f"{topic} = One sentence about {topic}:" in done.stdout


def test_own_stage(environment: dict[str, str]) -> None:
    done = run(environment, "examples/own_stage.py", "b a b")
    assert (done.returncode, done.stdout) == (0, "b, a\n"), done.stderr


def test_own_stage_is_tested_without_a_grid(environment: dict[str, str], tmp_path: Path) -> None:
    alone = {**environment, "GRIDQ_BROKER_URL": "redis://127.0.0.1:1/0", "PYTHONPATH": str(EXAMPLES)}
    alone["GRIDQ_PROFILES"] = "llm"
    tests = str(EXAMPLES / "test_own_stage.py")
    done = run(
        alone, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), tests
    )
    assert done.returncode == 0, done.stdout


def test_own_profile_is_short() -> None:
    text = (EXAMPLES / "own_profile" / "gridq_dataset.py").read_text()
    code = re.sub(r'"""[^"]*"""', "", text)
    assert len([line for line in code.splitlines() if line.strip()]) < MAX_LINES


def test_own_profile_passes_the_conformance_suite(installed: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    test = str(EXAMPLES / "own_profile" / "test_gridq_dataset.py")
    done = run(env, "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^1[0-9] passed", done.stdout, re.MULTILINE), done.stdout


def test_own_profile_runs_in_the_grid(environment: dict[str, str]) -> None:
    code = """
import gridq
graph = {"root": {"op": "Stage", "id": "dataset_rows", "config": {"name": "orders"}}}
job = gridq.submit(graph)
print(gridq.result(job, 30), gridq.client.get_default_client().rows(job)[0].queue)
"""
    done = run(environment, "-c", code)
    rows = [{"item": "bolt", "count": "3"}, {"item": "nut", "count": "4"}]
    assert (done.returncode, done.stdout) == (0, f"{rows} dataset:orders\n"), done.stderr
