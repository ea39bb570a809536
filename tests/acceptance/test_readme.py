"""Run the commands and programs of README.md and of the how-to pages, as they are written."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests.acceptance.homes import GRIDQ
from tests.conftest import GridEnv
from tests.waiting import wait_for
from workers.machine.seats import read_seats_file
from workers.supervisor.embedded_server import EmbeddedServer

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
AGENT = ROOT / "docs" / "how-to" / "agent"
STAGES = AGENT / "stages.md"
TESTS = AGENT / "testing.md"
PAGES = [
    README, TUTORIAL, *sorted(AGENT.glob("*.md")), ROOT / "docs" / "how-to" / "operator" / "deploy.md"
]  # fmt: skip
GATEWAY = "http://127.0.0.1:8080"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def _is_a_stage(block: str) -> bool:
    return "@stage(" in block


PROGRAMS = {
    f"{page.stem}-{number}": block
    for page in PAGES
    if page != TESTS
    for number, block in enumerate(blocks(page, "python"))
    if not _is_a_stage(block)
}
SHELL = [
    line.partition(" #")[0].strip()
    for page in PAGES
    for block in blocks(page, "bash")
    for line in block.splitlines()
]
SERVICES = [line for line in SHELL if line.startswith("celery ")]
COMMANDS = sorted({line for line in SHELL if line.startswith("gridq ")})
REQUESTS = sorted({line for line in SHELL if line.startswith("curl ")})


@pytest.fixture(scope="module")
def environment(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a shell in which the README's services run, started as written."""
    folder = tmp_path_factory.mktemp("readme")
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GRIDQ_BROKER_URL": server.url,
        "GRIDQ_PREFIX": f"r{secrets.token_hex(3)}:",
        "GRIDQ_HOME": str(folder / "home"),
    }
    with (folder / "log").open("w") as log, connect(server.url) as client:
        children = [
            subprocess.Popen(shlex.split(line), env=env, stdout=log, stderr=log, cwd=ROOT)
            for line in SERVICES
        ]
        try:

            def live() -> bool:
                assert all(child.poll() is None for child in children), (folder / "log").read_text()
                return client.zcard(Keys(env["GRIDQ_PREFIX"])("seats")) == len(SERVICES)

            wait_for(live, 60, poll=0.1, explain=(folder / "log").read_text)
            yield env
        finally:
            for child in children:
                child.terminate()
            codes = [child.wait(30) for child in children]
        assert codes == [0] * len(SERVICES)


def test_there_is_something_to_run() -> None:
    assert len(SERVICES) == 3
    assert len(COMMANDS) >= 2
    assert len([name for name in PROGRAMS if name.startswith("README")]) == 1
    assert len(PROGRAMS) >= 8
    assert len(REQUESTS) >= 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graph that the tutorial saves."""
    made = tmp_path_factory.mktemp("tutorial")
    (made / "greet.json").write_text(blocks(TUTORIAL, "json")[0])
    return made


def run(command: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command, which must succeed. Return its output."""
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_runs(environment: dict[str, str], gateway: str, folder: Path, name: str) -> None:
    """Only the gateway's port is replaced, which may be taken here."""
    program = [sys.executable, "-c", PROGRAMS[name].replace(GATEWAY, gateway)]
    assert run(program, env={**environment, "no_proxy": "*"}, cwd=folder).strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(environment: dict[str, str], command: str) -> None:
    assert run(shlex.split(command), env=environment, cwd=ROOT).strip()


@pytest.fixture(scope="module")
def gateway(environment: dict[str, str]) -> Iterator[str]:
    """The URL of a gateway of that grid."""
    program = subprocess.Popen(
        [*GRIDQ, "gateway", "--port", "0"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert program.stdout is not None
    try:
        yield program.stdout.readline().split()[1]
    finally:
        program.terminate()
        assert program.wait(30) == 0
        program.stdout.close()


@pytest.mark.parametrize("command", REQUESTS)
def test_each_request_is_answered(environment: dict[str, str], gateway: str, command: str) -> None:
    """Only the port is replaced, which may be taken here."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert GATEWAY in command
    request = shlex.split(command.replace(GATEWAY, gateway))
    answer = json.loads(run(request, env={**environment, "no_proxy": "*"}))
    if "/jobs" in command:
        assert answer["state"] in ("queued", "running", "done"), answer
    else:
        assert answer["choices"][0]["message"]["content"].strip(), answer


def test_the_seats_file_is_valid(tmp_path: Path) -> None:
    (seats,) = blocks(README, "toml")
    (tmp_path / "seats.toml").write_text(seats)
    assert {"llm", "local"} == set(read_seats_file(tmp_path, {"llm", "gpu"}))


def test_the_tests_of_graphs_pass(tmp_path: Path) -> None:
    """The programs of that page are one test module; its stages are those of the page before."""
    (tmp_path / "my_stages.py").write_text(blocks(STAGES, "python")[0])
    (tmp_path / "test_page.py").write_text("\n".join(blocks(TESTS, "python")))
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    assert "3 passed" in run(tests, cwd=tmp_path)


@pytest.mark.parametrize("page", [TUTORIAL, STAGES], ids=lambda page: page.stem)
def test_the_example_stage_can_be_called(grid_env: GridEnv, tmp_path: Path, page: Path) -> None:
    (source,) = filter(_is_a_stage, blocks(page, "python"))
    (tmp_path / "my_stages.py").write_text(source)
    program = "import my_stages; assert my_stages.shout('a') == 'A'"
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert Settings(stages="my_stages").stages == ("my_stages",)  # type: ignore[arg-type]


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README.read_text("utf-8")))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
