"""`gridq gateway` as a program: what it says, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gridq import auth
from gridq.store.keys import Keys
from tests.acceptance.homes import GRIDQ
from tests.conftest import GridEnv
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("key_hygiene")]


def environment(env: GridEnv, **more: str) -> dict[str, str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
    return {**quiet, **env.environ(), "GRIDQ_PROFILES": "bench", "GRIDQ_DRAIN": "5", **more}


@contextmanager
def started(
    env: GridEnv, tmp_path: Path, *arguments: str, **more: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The program and the file of what it says on stdout; what it says on stderr is in `err` beside it."""
    out = tmp_path / "out"
    with out.open("w") as stdout, (tmp_path / "err").open("w") as stderr:
        program = subprocess.Popen(
            [*GRIDQ, "gateway", *arguments],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, env=environment(env, **more),
        )  # fmt: skip
    try:
        yield program, out
    finally:
        program.kill()
        program.wait()


def refused(env: GridEnv, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A gateway that must not start."""
    done = subprocess.run(
        [*GRIDQ, "gateway", *arguments],
        capture_output=True, text=True, timeout=60, env=environment(env, **more), check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_when_told(
    grid_env: GridEnv, tmp_path: Path, number: signal.Signals
) -> None:
    with started(grid_env, tmp_path, "--port", "0", "--json") as (program, out):
        told = json.loads(wait_for(out.read_text))
        assert told["keys"] is False
        assert told["url"] == f"http://127.0.0.1:{told['port']}"
        with httpx.Client(base_url=told["url"], trust_env=False) as client:
            assert client.get("/v1/models").status_code == 200
            program.send_signal(number)  # while a connection is kept alive
            assert program.wait(20) == 0
    assert (tmp_path / "err").read_text() == ""


def test_a_port_that_is_taken_is_left_unless_it_was_asked_for(grid_env: GridEnv, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = refused(grid_env, "--port", str(port))
        assert done.returncode == 2
        assert str(port) in done.stderr
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8080)) != 0:
            probe.close()
            with socket.create_server(("127.0.0.1", 8080)):
                _says_another_port(grid_env, tmp_path)
        else:
            _says_another_port(grid_env, tmp_path)


def _says_another_port(env: GridEnv, tmp_path: Path) -> None:
    with started(env, tmp_path) as (_, out):
        text = wait_for(out.read_text)
        assert "(port 8080 is taken)" in text
        assert "curl http://127.0.0.1:" in text


def test_beyond_its_machine_it_needs_a_key(grid_env: GridEnv, tmp_path: Path) -> None:
    done = refused(grid_env, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 6
    assert done.stderr.startswith("error: auth.open: ")
    assert "gridq keys create" in done.stderr
    _, text = auth.create(grid_env.client, Keys(grid_env.prefix), "ann")
    with started(grid_env, tmp_path, "--host", "0.0.0.0", "--port", "0", "--json") as (_, out):
        told = json.loads(wait_for(out.read_text))
        assert told["keys"] is True
        wait_for(lambda: "unencrypted" in (tmp_path / "err").read_text())
        url = f"http://127.0.0.1:{told['port']}/v1/models"
        assert httpx.get(url, trust_env=False).status_code == 401
        key = {"authorization": f"Bearer {text}"}
        assert httpx.get(url, headers=key, trust_env=False).status_code == 200
    assert text not in out.read_text() + (tmp_path / "err").read_text()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--certfile", "missing.pem"), "certificate"),
        (("--keyfile", "missing.pem"), "without a certificate"),
        (("--host", "no.such.host.invalid"), "no address"),
        (("--port", "70000"), "65535"),
    ],
)
def test_what_cannot_be_is_one_line(grid_env: GridEnv, arguments: tuple[str, ...], word: str) -> None:
    done = subprocess.run(
        [*GRIDQ, "gateway", *arguments],
        capture_output=True, text=True, timeout=60, env=environment(grid_env), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_away_is_told_at_once(grid_env: GridEnv) -> None:
    done = refused(grid_env, GRIDQ_BROKER_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 2
    assert "broker.unreachable" in done.stderr
