"""One of three seats fails at once, and so is always free: it spends no request that the others could answer.

The others take a while for each request, and more requests wait than they have slots.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from gridq.config.settings import Settings
from tests.fakes.http_server import Handler
from tests.fakes.played_server import PlayedServer, answer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port

REFUSAL = {"error": {"message": "no", "type": "some_error", "param": None, "code": None}}


class Endpoint(PlayedServer):
    """An endpoint that answers each request with `status` after `seconds`, and counts them. `hangs_up`: it
    closes the connection instead.
    """

    def __init__(self, status: int = 200, seconds: float = 0.0, *, hangs_up: bool = False) -> None:
        self.status = status

        def play(handler: Handler) -> None:
            time.sleep(seconds)
            if hangs_up:
                handler.close_connection = True
            elif self.status == 200:
                answer(handler)
            else:
                handler.answer(self.status, REFUSAL)

        super().__init__(play)


class ClosedPort:
    """A port that refuses connections, and counts nothing."""

    calls = 0
    url = ""

    def __enter__(self) -> Self:
        self.url = f"http://127.0.0.1:{find_free_port()}/v1"
        return self

    def __exit__(self, *_: object) -> None: ...


class MuteTls(ClosedPort):
    """A port that closes each connection: a TLS handshake with it fails."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        while True:
            try:
                self._listener.accept()[0].close()
            except OSError:
                return
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        self._listener.close()


DEAD: dict[str, Callable[[], Any]] = {
    "refused": ClosedPort,
    "no TLS": MuteTls,
    "hangs up": lambda: Endpoint(hangs_up=True),
    **{str(status): lambda status=status: Endpoint(status) for status in (500, 503, 529, 404, 405, 409, 425)},
}


@contextmanager
def running(
    server: EmbeddedServer, home: Path, endpoints: dict[str, Any], **settings: Any
) -> Iterator[tuple[Gateway, LocalGrid]]:
    """Run a gateway, and a seat of two slots at each endpoint."""
    config = Settings(
        broker_url=server.url, prefix=f"d{secrets.token_hex(4)}:", home=home, retry_backoff=0.05, **settings
    )
    with ExitStack() as stack:
        for endpoint in endpoints.values():
            stack.enter_context(endpoint)
        runners = {name: LlmRunner(each.url, [{"name": "m"}]) for name, each in endpoints.items()}
        grid = stack.enter_context(llm_grid(config, runners, concurrency=2))
        yield stack.enter_context(serving(config)), grid


def ask_many(gateway: Gateway, count: int, *, agents: int = 4) -> list[httpx.Response]:
    def ask(number: int) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": f"question {number}"}]}
        return http.post(
            "/v1/chat/completions", json=body, headers={"x-gridq-agent": f"agent{number % agents}"}
        )

    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=gateway.url, timeout=60, limits=limits) as http,
        ThreadPoolExecutor(count) as pool,
    ):
        return list(pool.map(ask, range(count)))


@pytest.mark.parametrize("fault", DEAD)
def test_a_dead_seat_takes_no_request_from_two_healthy_ones(
    server: EmbeddedServer, tmp_path: Path, fault: str
) -> None:
    dead = DEAD[fault]()
    endpoints = {"m.dead": dead, "m.b": Endpoint(seconds=0.1), "m.c": Endpoint(seconds=0.1)}
    with running(server, tmp_path, endpoints) as (gateway, grid):
        replies = ask_many(gateway, 60)
        assert Counter(reply.status_code for reply in replies) == {200: 60}, replies[0].text
        # Three requests in a row open the breaker; up to two of them run side by side. Of one model of an
        # endpoint that says nothing of the reason, three requests of two agents do.
        assert dead.calls <= 12
        rows = [grid.client.rows(job.job) for job in grid.client.jobs(100)]
        assert len(rows) == 60
        assert all(any(row.state == "done" for row in each) for each in rows)
        failed = Counter(row.worker for each in rows for row in each if row.state == "failed")
        assert set(failed) <= {"m.dead"}
        assert failed["m.dead"] <= 12
        assert grid.sessions["m.dead"].in_cooldown


@pytest.mark.parametrize("fault", ["refused", "503"])
def test_two_dead_seats_of_three_take_no_request_from_the_third(
    server: EmbeddedServer, tmp_path: Path, fault: str
) -> None:
    endpoints = {"m.dead": DEAD[fault](), "m.dead2": DEAD[fault](), "m.c": Endpoint(seconds=0.05)}
    with running(server, tmp_path, endpoints) as (gateway, _):
        replies = ask_many(gateway, 40)
        assert Counter(reply.status_code for reply in replies) == {200: 40}


def test_one_seat_gets_a_request_once_while_another_is_busy(server: EmbeddedServer, tmp_path: Path) -> None:
    healthy = Endpoint(seconds=0.1)
    moody = Endpoint(503)
    with running(server, tmp_path, {"m.moody": moody, "m.b": healthy}) as (gateway, grid):
        with ThreadPoolExecutor(8) as pool:
            busy = [pool.submit(ask_many, gateway, 1) for _ in range(8)]
            assert all(each.result(30)[0].status_code == 200 for each in busy)
        rows = [grid.client.rows(job.job) for job in grid.client.jobs(20)]
        assert len(rows) == 8
        assert any(row.worker == "m.moody" for each in rows for row in each)
        assert all([row.worker for row in each].count("m.moody") <= 1 for each in rows)


def test_a_seat_that_is_well_again_takes_one_request_and_then_all(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridq.execution.circuit_breaker.FAILING_COOLDOWN_SECONDS", 0.5)
    flapping = Endpoint(503)
    with running(server, tmp_path, {"m.a": flapping, "m.b": Endpoint()}, renew_ms=100) as (gateway, grid):
        breaker = grid.sessions["m.a"].breaker
        deadline = time.monotonic() + 20
        while breaker.opened is None and time.monotonic() < deadline:
            ask_many(gateway, 4)
        assert breaker.opened is not None
        assert breaker.opened.state == "failing"
        flapping.status = 200
        while (breaker.opened or breaker.half_open_reason) and time.monotonic() < deadline:
            assert all(reply.status_code == 200 for reply in ask_many(gateway, 4))
        assert breaker.opened is None
        assert breaker.half_open_reason == ""
