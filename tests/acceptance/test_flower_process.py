"""Flower's process: start, refusals, outages of its server, end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from celery import Celery

from gridq.app import server_options
from gridq.config.settings import Settings
from gridq.messaging import flower_app
from gridq.process import parent_watch
from tests.flower_process import RUN, FlowerProcess, read_task
from tests.processes import is_running
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer


@pytest.fixture(scope="module")
def environ(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    return {"GRIDQ_BROKER_URL": server.url, "GRIDQ_PREFIX": f"p{os.getpid()}:", "GRIDQ_HOME": str(home)}


@pytest.fixture(scope="module")
def shown(environ: dict[str, str]) -> Iterator[FlowerProcess]:
    with FlowerProcess(environ) as flower:
        yield flower


def test_celerys_own_command_is_the_same_flower(environ: dict[str, str], shown: FlowerProcess) -> None:
    port = free_port()
    conf = Path(flower_app.__file__).parents[2] / "broker_config" / "flowerconfig.py"
    what = ["-A", "gridq.app", "-q", "flower", f"--port={port}", f"--conf={conf}", "--logging=error"]
    child = subprocess.Popen([sys.executable, "-m", "celery", *what], env={**shown.environ, **environ})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(f"{url}/healthcheck"))
        assert httpx.get(f"{url}/api/workers").status_code == 401
        assert httpx.get(f"{url}/metrics").status_code == 401
        (login, refused) = (("gridq", shown.password), "/api/task/send-task/gridq.run_graph")
        assert httpx.post(f"{url}{refused}", auth=login).status_code == 403
        listed = httpx.get(f"{url}/api/queues/length", auth=login).json()["active_queues"]
        assert [each["name"] for each in listed] == ["gridq:router"]
    finally:
        child.terminate()
        child.wait(20)


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", RUN, "flower", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)


def test_flower_requires_a_password(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    secret = {"GRIDQ_FLOWER_PASSWORD_FILE": str(tmp_path / "empty")}
    for address in ("127.0.0.1", "0.0.0.0"):
        done = run({**environ, **secret}, "--address", address, "--port", "0")
        assert done.returncode == 2
        assert "has no password" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_taken_port_is_one_line_of_error(environ: dict[str, str], shown: FlowerProcess) -> None:
    done = run(environ, "--port", str(shown.about["port"]))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_an_unreachable_server_is_one_line_of_error(environ: dict[str, str]) -> None:
    done = run({**environ, "GRIDQ_BROKER_URL": "redis://:secret@127.0.0.1:1/0"}, "--port", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "secret" not in done.stderr


def test_a_public_address_has_its_path_and_a_warning(environ: dict[str, str]) -> None:
    with FlowerProcess(
        environ, "--public-url", "http://grid.example.com/flower", "--address", "0.0.0.0"
    ) as away:
        assert away.about["url"] == "http://grid.example.com/flower"
        assert away.anonymous.get("/flower/api/workers").status_code == 401
        assert away.client.get("/flower/workers").status_code == 200
        assert away.anonymous.get("/flower/healthcheck").text == "OK"
        wait_for(lambda: "unencrypted" in away.read_log())
        away.process.send_signal(signal.SIGTERM)
        assert away.process.wait(20) == 0


def test_flower_survives_an_outage_of_its_server(tmp_path: Path) -> None:
    """It receives events again afterwards, and can end during an outage too."""
    with EmbeddedServer(tmp_path / "server") as server:
        environ = {"GRIDQ_BROKER_URL": server.url, "GRIDQ_HOME": str(tmp_path), "GRIDQ_PREFIX": "gq:"}
        with FlowerProcess(environ) as flower:
            assert flower.client.get("/api/queues/length").status_code == 200
            server.kill()
            wait_for(lambda: flower.client.get("/api/queues/length").status_code == 503)
            server.start()
            sender = Celery("sender")
            sender.conf.update(server_options(Settings(broker_url=server.url)))

            def heard() -> bool:
                with sender.connection() as to, sender.events.Dispatcher(to, hostname="bench@m") as out:
                    out.send("task-received", uuid="a-job", name="a graph", args="anon", kwargs="1 step")
                return bool(read_task(flower, "a-job"))

            wait_for(heard)
            server.kill()
            wait_for(lambda: flower.client.get("/api/queues/length").status_code == 503)
            flower.process.terminate()
            assert flower.process.wait(20) == 0


def test_flower_ends_with_its_parent(environ: dict[str, str]) -> None:
    """Flower is the child of a program that is killed."""
    program = (
        "import os, subprocess, sys\n"
        f"env = {{**os.environ, '{parent_watch.PARENT_VARIABLE}': str(os.getpid())}}\n"
        f"command = [sys.executable, '-c', {RUN!r}, 'flower', '--port', '0', '--json']\n"
        "child = subprocess.Popen(command, env=env)\n"
        "print(child.pid, flush=True); child.wait()\n"
    )
    env = {**os.environ, **environ, "PYTHONWARNINGS": "ignore"}
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env, text=True)
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    assert starter.stdout.readline() == "{\n"
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_for(lambda: not is_running(child))
