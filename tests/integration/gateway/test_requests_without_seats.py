"""A request whose only seat goes into cooldown ends as a new one is refused, and says when the seat is back.

The head of a stream waits for that too.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gridq.config.settings import Settings
from gridq.errors import NoLiveSeat
from gridq.protocol.models import Advertisement
from gridq.protocol.seat_states import PAUSED, Unavailable
from gridq.seats import registry
from tests.fakes.http_server import Handler
from tests.fakes.played_server import Play, PlayedServer, answer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
DAY = 86_400
HOLD = 0.2
"""The time for which a gateway keeps a job that no seat serves, in seconds."""


def refuse(
    status: int, message: str = "no", headers: dict[str, str] | None = None, kind: str = "some_error"
) -> Play:
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return lambda handler: handler.answer(status, body, headers)


CAUSES: dict[str, tuple[Play | None, float]] = {
    "key refused": (refuse(401, "Incorrect API key provided"), 60),
    "account suspended": (refuse(403, "Your account has been suspended"), 60),
    "no credit": (refuse(402, "no credit"), 60),
    "limited for a day": (refuse(429, "quota", {"Retry-After": str(DAY)}), DAY),
    "down for a day": (refuse(503, "maintenance", {"Retry-After": str(DAY)}), DAY),
    "overloaded for a day": (refuse(529, "overloaded", {"Retry-After": str(DAY)}), DAY),
    "redirect": (refuse(308, "", {"Location": "http://127.0.0.1:1/v1"}), 60),
    "wrong path": (refuse(404, "Not Found"), 60),
    "no such model": (refuse(404, "The model `m` does not exist", kind="model_not_found"), 60),
    "refused connections": (None, 10),
}
"""What each request gets, and the seconds of the cooldown. None: a closed port."""


@contextmanager
def one_seat(
    server: EmbeddedServer, home: Path, play: Play | None, *, keep_alive: float = 2.0, **settings: Any
) -> Iterator[tuple[Gateway, LocalGrid]]:
    """Run a gateway, and one seat, which is advertised as its worker would."""
    config = Settings(
        broker_url=server.url, prefix=f"r{secrets.token_hex(4)}:", home=home, retry_backoff=0.05,
        renew_ms=100, **{"admission_wait": HOLD, **settings},
    )  # fmt: skip
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{find_free_port()}/v1"
        if play is not None:
            url = stack.enter_context(PlayedServer(play)).url
        runner = LlmRunner(url, [{"name": "m"}])
        grid = stack.enter_context(llm_grid(config, {"m.api": runner}, concurrency=2))
        session = grid.sessions["m.api"]

        def advertise() -> None:
            why = session.unavailable
            ad = Advertisement(
                seat="m.api", machine="m", worker="api@m", incarnation=session.incarnation, kind="llm",
                concurrency=2, queues=list(session.queues), started_at=1.0,
                capability=runner.capability.model_dump(mode="json"),
                state=why.state if why else "ready", reason=why.reason if why else "",
                until=why.until if why else None, models_in_cooldown=session.list_model_cooldowns(),
            )  # fmt: skip
            registry.advertise(grid.scripts.client, grid.scripts.keys, ad, 600.0)

        session.on_change = advertise
        yield stack.enter_context(serving(config, keep_alive=keep_alive)), grid


def ask(gateway: Gateway, path: str = CHAT, *, stream: bool = False, **headers: str) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    return gateway.http.post(path, json={**body, "max_tokens": 9}, headers=headers)


def check_refusal(reply: httpx.Response, seconds: float) -> None:
    """Check that a request was refused because the seat is back in `seconds`."""
    assert reply.status_code == 503, reply.text
    error = reply.json()["error"]
    assert error["gridq_code"] == "seat.none_live"
    assert error["queue"] == "llm:m"
    assert seconds - 9 <= int(reply.headers["retry-after"]) <= seconds
    assert seconds - 10 <= error["retry_after"] <= seconds


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("cause", CAUSES)
def test_a_running_request_ends_as_a_new_one_is_refused(
    server: EmbeddedServer, tmp_path: Path, cause: str, path: str, stream: bool
) -> None:
    play, seconds = CAUSES[cause]
    with one_seat(server, tmp_path, play) as (gateway, _):
        began = time.monotonic()
        check_refusal(ask(gateway, path, stream=stream), seconds)
        assert time.monotonic() - began < 8
        began = time.monotonic()
        check_refusal(ask(gateway, path, stream=stream), seconds)
        assert time.monotonic() - began < HOLD + 4


def test_requests_that_wait_end_with_the_one_that_failed(server: EmbeddedServer, tmp_path: Path) -> None:
    def play(handler: Handler) -> None:
        time.sleep(0.5)
        refuse(401)(handler)

    with one_seat(server, tmp_path, play) as (gateway, grid):
        jobs = [grid.client.submit(GRAPH, "hello") for _ in range(6)]
        check_refusal(ask(gateway), 60)
        for job in jobs:
            with pytest.raises(NoLiveSeat):
                grid.client.result(job, timeout=10)


GRAPH = {"root": {"op": "Stage", "id": "llm_complete", "config": {"model": "m"}}}


def test_a_graph_outlasts_a_rest_that_passes(server: EmbeddedServer, tmp_path: Path) -> None:
    """What it has paid for must not be thrown away for a minute's cooldown."""
    limited = refuse(429, "slow down", {"Retry-After": "60"})
    with one_seat(server, tmp_path, limited) as (gateway, grid):
        waits = grid.client.submit(GRAPH, "hello")
        session = grid.sessions["m.api"]
        wait_for(lambda: session.breaker.opened is not None)
        check_refusal(ask(gateway), 60)
        assert not grid.client.wait(waits, HOLD + 1.5)
        assert session.end_cooldown(), "as `gridq seat retry` does"
        grid.client.cancel(waits)


def test_a_job_that_waits_for_a_seat_goes_on_when_the_key_is_renewed(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    valid: list[bool] = []

    def play(handler: Handler) -> None:
        if valid:
            answer(handler)
        else:
            refuse(401)(handler)

    with one_seat(server, tmp_path, play) as (_, grid):
        job = grid.client.submit(GRAPH, "hello", wait_for_seat=True)
        session = grid.sessions["m.api"]
        wait_for(lambda: session.breaker.opened is not None)
        assert not grid.client.wait(job, HOLD + 1.5)
        valid.append(True)
        session.end_cooldown()
        assert grid.client.result(job, timeout=20) == "ok"


def test_an_owners_pause_ends_a_request_whose_client_waits(server: EmbeddedServer, tmp_path: Path) -> None:
    def play(handler: Handler) -> None:
        time.sleep(30)

    with one_seat(server, tmp_path, play) as (gateway, grid):
        session = grid.sessions["m.api"]
        graph = grid.client.submit(GRAPH, "hello")
        wait_for(lambda: session.busy == 1)
        until = time.time() + 600
        session.announce_pause(session.pause(Unavailable(PAUSED, "for lunch", until=until)))
        check_refusal(ask(gateway), 600)
        assert not grid.client.wait(graph, 0.1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_restart_of_the_only_worker_ends_no_request_that_waits(
    server: EmbeddedServer, tmp_path: Path, stream: bool
) -> None:
    """It finishes what it runs first, which takes longer than requests wait for a seat that is away."""
    wait, go_on = 3.0, threading.Event()

    def play(handler: Handler) -> None:
        go_on.wait(30)
        answer(handler)

    with (
        one_seat(server, tmp_path, play, admission_wait=wait) as (gateway, grid),
        ThreadPoolExecutor() as threads,
    ):
        session = grid.sessions["m.api"]
        replies = [threads.submit(ask, gateway, path, stream=stream) for path in (CHAT, MESSAGES, CHAT)]
        wait_for(lambda: session.busy == 2 and len(grid.client.jobs(9)) == 3)
        stop = threads.submit(session.stop)
        time.sleep(wait + 1)
        assert not any(reply.done() for reply in replies)
        go_on.set()
        stop.result(30)
        seats = {"m.api": session.queues}
        with LocalGrid(grid.scripts.client, grid.config, seats, runner=session.runner):
            answered = [reply.result(30) for reply in replies]
        assert [(each.status_code, "ok" in each.text) for each in answered] == [(200, True)] * 3


def test_the_head_of_a_stream_is_sent_once_the_endpoint_works(server: EmbeddedServer, tmp_path: Path) -> None:
    """The client of a slow endpoint gets comments, not silence."""

    def play(handler: Handler) -> None:
        time.sleep(2)
        refuse(400, "too late for a status")(handler)

    with one_seat(server, tmp_path, play, keep_alive=0.4) as (gateway, _):
        began = time.monotonic()
        reply = ask(gateway, stream=True)
        assert reply.status_code == 200
        assert reply.text.startswith(": keep-alive")
        assert "too late for a status" in reply.text
        assert time.monotonic() - began < 10
