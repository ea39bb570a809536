"""The program `gridq gateway`: its output and its end. Its refusals are in tests/unit/cli."""

from __future__ import annotations

import contextlib
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

from gridq.limits import api_keys
from gridq.store.keys import Keys
from tests.acceptance.homes import GRIDQ
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("key_hygiene")]


def environment(env: GridEnv, **more: str) -> dict[str, str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
    return {**quiet, **env.environ(), "GRIDQ_PROFILES": BENCH, "GRIDQ_DRAIN": "5", **more}


@contextmanager
def started(
    env: GridEnv, tmp_path: Path, *arguments: str, **more: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield the program and the file of its stdout; its stderr is in the file `err` beside it."""
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_gateway_prints_its_url_and_ends_on_a_signal(
    grid_env: GridEnv, tmp_path: Path, number: signal.Signals
) -> None:
    with started(grid_env, tmp_path, "--port", "0", "--json") as (program, out):
        about = json.loads(wait_for(out.read_text))
        assert about["keys"] is False
        assert about["url"] == f"http://127.0.0.1:{about['port']}"
        with httpx.Client(base_url=about["url"], trust_env=False) as client:
            assert client.get("/v1/models").status_code == 200
            program.send_signal(number)  # while a connection is kept alive
            assert program.wait(20) == 0
    assert (tmp_path / "err").read_text() == ""


def test_a_taken_port_is_replaced_and_reported(grid_env: GridEnv, tmp_path: Path) -> None:
    ours = False
    while not ours:
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # a grid of another test has it, and may let it go meanwhile
                held.enter_context(socket.create_server(("127.0.0.1", 8080)))
                ours = True
            with started(grid_env, tmp_path) as (_, out):
                text = wait_for(out.read_text)
        if "(port 8080 is taken)" in text:
            break
    assert "(port 8080 is taken)" in text
    assert "curl http://127.0.0.1:" in text


def test_beyond_its_machine_the_gateway_requires_keys(grid_env: GridEnv, tmp_path: Path) -> None:
    _, text = api_keys.create(grid_env.client, Keys(grid_env.prefix), "ann")
    with started(grid_env, tmp_path, "--host", "0.0.0.0", "--port", "0", "--json") as (_, out):
        about = json.loads(wait_for(out.read_text))
        assert about["keys"] is True
        wait_for(lambda: "unencrypted" in (tmp_path / "err").read_text())
        url = f"http://127.0.0.1:{about['port']}/v1/models"
        assert httpx.get(url, trust_env=False).status_code == 401
        key = {"authorization": f"Bearer {text}"}
        assert httpx.get(url, headers=key, trust_env=False).status_code == 200
    assert text not in out.read_text() + (tmp_path / "err").read_text()
