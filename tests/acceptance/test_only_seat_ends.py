"""The worker of a model's only seat is killed while one request runs there and another waits for it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gridq.client import Client
from gridq.config.settings import Settings
from tests.fakes.http_server import Handler
from tests.fakes.played_server import PlayedServer, answer
from tests.gateways import Gateway, serving
from tests.grid_environment import use_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

pytestmark = pytest.mark.slow

PATHS = ("/v1/chat/completions", "/v1/messages")

SEAT = """
[[llm]]
name = "api"
url = "{url}"
allow_loopback = true
concurrency = 1
models = [{{ name = "m" }}]
"""

LONG_WAIT = 120.0
"""Seconds in which a worker starts again, however busy the machine is."""


class Endpoint(PlayedServer):
    """An endpoint that answers once `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

        def play(handler: Handler) -> None:
            self.go_on.wait(LONG_WAIT)
            answer(handler)

        super().__init__(play)


@dataclass
class OneSeat:
    """A gateway, a router, and the worker of a seat with one slot."""

    gateway: Gateway
    client: Client
    programs: GridProcesses
    endpoint: Endpoint
    threads: ThreadPoolExecutor

    def ask_both(self, *, stream: bool = False) -> list[Future[httpx.Response]]:
        """Send a request in each API format; return once one runs and the other waits."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
        replies = [
            self.threads.submit(self.gateway.http.post, path, json={**body, "stream": stream})
            for path in PATHS
        ]
        wait_for(lambda: self.endpoint.calls == 1 and len(self.client.jobs(9)) == 2)
        return replies

    def kill_worker(self) -> None:
        """Kill the worker, as a lack of memory would."""
        worker = self.programs.children["api"]
        worker.kill()
        worker.wait()

    def has_seat(self) -> bool:
        return any(seat.kind == "llm" for seat in self.client.seats())


@contextmanager
def running(server: EmbeddedServer, folder: Path, admission_wait: float) -> Iterator[OneSeat]:
    home = folder / "home"
    home.mkdir(mode=0o700)
    config = Settings(
        broker_url=server.url, prefix=f"k{secrets.token_hex(4)}:", home=home, admission_wait=admission_wait
    )
    env = {"GRIDQ_ADMISSION_WAIT": str(admission_wait)}
    with ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint())
        (home / "seats.toml").write_text(SEAT.format(url=endpoint.url))
        client = stack.enter_context(use_grid(config, env))
        programs = stack.enter_context(GridProcesses(config, ["api"], folder=folder / "logs", env=env))
        gateway = stack.enter_context(serving(config))
        gateway.http.timeout = LONG_WAIT
        threads = stack.enter_context(ThreadPoolExecutor())
        stack.callback(endpoint.go_on.set)
        wait_for(lambda: gateway.get("/v1/models")["data"])
        yield OneSeat(gateway, client, programs, endpoint, threads)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_requests_end_once_the_worker_has_not_come_back(
    server: EmbeddedServer, tmp_path: Path, stream: bool
) -> None:
    with running(server, tmp_path, 2.0) as grid:
        replies = grid.ask_both(stream=stream)
        grid.kill_worker()
        wait_for(lambda: not grid.has_seat())
        gone = time.monotonic()
        for reply in replies:
            answer = reply.result(60)
            assert answer.status_code == 503, answer.text
            error = answer.json()["error"]
            assert error["gridq_code"] == "seat.none_live"
            assert error["queue"] == "llm:m"
        assert time.monotonic() - gone > 1.5, "the worker had time to start again"
        assert grid.endpoint.calls == 1
        assert not [job for job in grid.client.jobs(9) if job.state is None]


def test_requests_are_answered_by_the_worker_that_comes_back(server: EmbeddedServer, tmp_path: Path) -> None:
    with running(server, tmp_path, LONG_WAIT) as grid:
        replies = grid.ask_both()
        grid.kill_worker()
        wait_for(lambda: not grid.has_seat())
        grid.endpoint.go_on.set()
        grid.programs.spawn("api")
        for reply in replies:
            answer = reply.result(LONG_WAIT)
            assert answer.status_code == 200, answer.text
        assert grid.endpoint.calls == 3, "the request that ran is sent again"
