"""A stream outlives the gateway that began it, and the server's restart."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gridq import queues
from gridq.settings import Settings
from gridq.states import JobState
from gridq.store.connection import connect
from tests.acceptance.homes import GRIDQ
from tests.integration.gateway.conftest import LlmRunner
from tests.local_grid import LocalGrid
from tests.waiting import wait_for
from tests.wire_server import WireServer
from workers.embedded import EmbeddedServer

pytestmark = pytest.mark.slow

WORDS = [f"w{number}" for number in range(150)]
CHAT = "/v1/chat/completions"


class Grid:
    """A grid in this process, and gateways before it that are processes of their own."""

    def __init__(self, server: EmbeddedServer, local: LocalGrid, config: Settings) -> None:
        self.server = server
        self.local = local
        self.config = config

    @contextmanager
    def gateway(self, drain: float = 20) -> Iterator[tuple[subprocess.Popen[str], str]]:
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
        told = {
            "GRIDQ_BROKER_URL": self.server.url, "GRIDQ_PREFIX": self.config.prefix,
            "GRIDQ_HOME": str(self.config.home), "GRIDQ_DRAIN": str(drain),
        }  # fmt: skip
        program = subprocess.Popen(
            [*GRIDQ, "gateway", "--port", "0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=quiet | told,
        )  # fmt: skip
        assert program.stdout is not None
        try:
            yield program, program.stdout.readline().split()[1]
        finally:
            program.kill()
            program.wait()
            program.stdout.close()


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "home").mkdir()
    with EmbeddedServer(Path(folder / "data"), appendonly=True) as server, WireServer() as wire:
        config = Settings(broker_url=server.url, prefix=f"r{secrets.token_hex(3)}:", home=folder / "home")
        client = connect(server.url, name="tests")
        runner = LlmRunner(wire.url)
        seats = {"m.api": runner.profile.queues(runner.capability), "m.router": [queues.PURE]}
        with LocalGrid(client, config, seats, lanes=8, runner=runner) as local:  # type: ignore[arg-type]
            yield Grid(server, local, config)
        runner.profile.close()
        client.close()


class Reader:
    """What a client has read of one stream, over however many connections; only whole events count."""

    def __init__(self, model: str = "paced") -> None:
        self.model = model
        self.job = ""
        self.last = ""
        self.words: list[str] = []
        self.ids: list[str] = []
        self.whole = False

    def read(self, url: str, then: Callable[[], bool] = lambda: True) -> None:
        """Read on from where it stands, for as long as `then()`, asked after each event, is true."""
        body = {
            "model": self.model,
            "stream": True,
            "messages": [{"role": "user", "content": " ".join(WORDS)}],
        }
        headers = {"last-event-id": self.last} if self.last else {}
        with (
            httpx.Client(timeout=60) as http,
            http.stream("POST", url + CHAT, json=body, headers=headers) as got,
        ):
            assert got.status_code == 200, got.read()
            self.job = got.headers["x-gridq-job"]
            event: dict[str, str] = {}
            for line in got.iter_lines():
                name, _, value = line.partition(": ")
                if name:
                    event[name] = value
                elif "data" in event:
                    self._take(event)
                    event = {}
                    if not then():
                        return

    def _take(self, event: dict[str, str]) -> None:
        self.last = event["id"]
        self.ids.append(self.last)
        if event["data"] == "[DONE]":
            self.whole = True
            return
        for choice in json.loads(event["data"])["choices"]:
            word: Any = choice["delta"].get("content")
            if word:
                self.words.append(word.strip())


def test_a_gateway_killed_in_mid_stream_is_resumed_on_another(grid: Grid) -> None:
    reader = Reader()

    def kill() -> bool:
        if len(reader.words) == 40:
            os.kill(first.pid, signal.SIGKILL)
        return True

    with grid.gateway() as (_, other), grid.gateway() as (first, url):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            reader.read(url, kill)
        assert 40 <= len(reader.words) < len(WORDS)
        assert not reader.whole
        reader.read(other)
    assert reader.whole
    assert reader.words == WORDS
    assert len(set(reader.ids)) == len(reader.ids)
    assert grid.local.client.status(reader.job) is JobState.DONE


def test_a_gateway_that_is_told_to_stop_lets_its_streams_end(grid: Grid) -> None:
    reader = Reader()
    with grid.gateway() as (program, url):

        def stop() -> bool:
            if len(reader.words) == 5:
                program.terminate()
            return True

        reader.read(url, stop)
        assert reader.whole
        assert reader.words == WORDS
        assert program.wait(30) == 0


def test_a_stream_that_a_stopping_gateway_cuts_off_goes_on_at_another(grid: Grid) -> None:
    reader = Reader("slow")
    with grid.gateway() as (_, other), grid.gateway(drain=0) as (program, url):

        def stop() -> bool:
            if len(reader.words) == 5:
                program.terminate()
            return True

        with suppress(httpx.RemoteProtocolError, httpx.ReadError):
            reader.read(url, stop)
        assert program.wait(30) == 0
        assert grid.local.client.status(reader.job) is JobState.RUNNING
        count = len(reader.words) + 5
        reader.read(other, lambda: len(reader.words) < count)
        wait_for(lambda: grid.local.client.status(reader.job), true=lambda state: state is JobState.CANCELLED)
    assert len(set(reader.ids)) == len(reader.ids)


def test_a_stream_outlives_the_servers_restart(grid: Grid) -> None:
    reader = Reader()

    def restart() -> bool:
        if len(reader.words) == 10:
            grid.server.stop()
            grid.server.start()
        return True

    with grid.gateway() as (_, url):
        reader.read(url, restart)
        assert reader.whole
        assert reader.words == WORDS
        hello = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
        reply = httpx.post(url + CHAT, json=hello, timeout=30)
        assert reply.status_code == 200, reply.text
