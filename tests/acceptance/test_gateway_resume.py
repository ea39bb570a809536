"""Streams that continue after the end of their gateway, or a restart of the server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from gridq.protocol.states import JobState
from tests.acceptance.llm_grid import Grid, llm_grid
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

WORDS = [f"w{number}" for number in range(150)]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
GRAMMAR = [
    "message_start", "content_block_start", *["content_block_delta"] * len(WORDS), "content_block_stop",
    "message_delta", "message_stop",
]  # fmt: skip
"""The events of Anthropic's API format for an answer of all WORDS."""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with llm_grid(tmp_path_factory.mktemp("resume")) as made:
        yield made


class Reader:
    """A client's view of one stream, over several connections. Only whole events count."""

    def __init__(self, model: str = "paced", path: str = CHAT) -> None:
        self.model = model
        self.path = path
        self.job = ""
        self.last = ""
        self.words: list[str] = []
        self.ids: list[str] = []
        self.kinds: list[str] = []
        self.whole = False

    def read(self, url: str, then: Callable[[], bool] = lambda: True) -> None:
        """Read on after the last event, as long as `then()`, called after each event, is true."""
        body = {
            "model": self.model,
            "stream": True,
            "max_tokens": 999,
            "messages": [{"role": "user", "content": " ".join(WORDS)}],
        }
        headers = {"last-event-id": self.last} if self.last else {}
        with (
            httpx.Client(timeout=60) as http,
            http.stream("POST", url + self.path, json=body, headers=headers) as got,
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
        data: Any = json.loads(event["data"])
        if self.path == MESSAGES:
            assert event["event"] == data["type"]
            self.kinds.append(data["type"])
            self.whole = data["type"] == "message_stop"
            deltas = [data["delta"].get("text")] if data["type"] == "content_block_delta" else []
        else:
            deltas = [choice["delta"].get("content") for choice in data["choices"]]
        self.words += [word.strip() for word in deltas if word]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_gateway_killed_in_mid_stream_is_resumed_on_another(grid: Grid, path: str) -> None:
    reader = Reader(path=path)

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
    assert reader.kinds == (GRAMMAR if path == MESSAGES else [])
    assert grid.local.client.status(reader.job) is JobState.DONE


def test_a_stopping_gateway_lets_its_streams_end(grid: Grid) -> None:
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


@pytest.mark.parametrize(("away", "twice"), [(False, True), (True, False), (True, True)])
def test_a_gateway_ends_in_time_and_at_once_on_a_second_signal(
    grid: Grid, away: bool, twice: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, signalled = Reader("slow"), []
    with grid.gateway(drain=600 if twice else 0.5) as (program, url):

        def stop() -> bool:
            if len(reader.words) == 5 and not signalled:
                if away:
                    os.kill(grid.server.pid or 0, signal.SIGSTOP)
                program.terminate()
                if twice:
                    wait_for(lambda: refuses(url))
                    program.terminate()
                signalled.append(True)
            return len(reader.words) < 200

        try:
            with suppress(httpx.RemoteProtocolError, httpx.ReadError):
                reader.read(url, stop)
            assert program.wait(15) in (0, 1)
        finally:
            os.kill(grid.server.pid or 0, signal.SIGCONT)
    assert "Traceback" not in capfd.readouterr().err
    assert grid.local.client.status(reader.job) is JobState.RUNNING  # it is read on at another gateway
    grid.local.client.cancel(reader.job)


def refuses(url: str) -> bool:
    try:
        httpx.get(url + "/health", trust_env=False)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:  # it was open, or the server that it asks is away
        return False
    return False


def test_a_stream_survives_a_restart_of_the_server(grid: Grid) -> None:
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
