"""What a gateway holds, refuses and says of it, by each wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from gridq import registry
from gridq.executor import Session
from gridq.limiting import lift, put_in_force
from gridq.protocol import Advertisement, Service
from gridq.quotas import parse
from gridq.store.scripts import Scripts
from tests.builders import stage
from tests.gateways import benches
from tests.integration.gateway.conftest import Served
from tests.local_grid import BenchRunner
from tests.waiting import wait_for
from workers.embedded import EmbeddedServer

HELLO = [{"role": "user", "content": "hello"}]
CHATS = ("/v1/chat/completions", "/v1/messages")
SOON = ("bottleneck", "capability", "fix")


@pytest.fixture
def scripts(served: Served) -> Iterator[Scripts]:
    made = served.grid.scripts
    yield made
    lift(made)


def ask(served: Served, path: str, model: str, **headers: str) -> httpx.Response:
    body = {"model": model, "messages": HELLO, "max_tokens": 5}
    return served.gateway.http.post(path, json=body, headers=headers)


@contextmanager
def idle(scripts: Scripts, seat: str, queue: str, took: float = 5.0) -> Iterator[None]:
    """A live seat that takes nothing by itself, and says that its stages take so long."""
    session = Session(
        scripts, scripts.config, seat=seat, host="h", lanes=1, queues=[queue], runner=BenchRunner()
    )
    ad = Advertisement(
        seat=seat, machine="t", worker=f"{seat}@t", incarnation="i", kind="llm", lanes=1, queues=[queue],
        service={queue: Service(n=50, mean=took, p50=took, p90=took)},
    )  # fmt: skip
    registry.advertise(scripts.client, scripts.keys, ad, 60)
    session.start()
    try:
        yield
    finally:
        session.stop(0)


def bound(scripts: Scripts, queue: str, most: int) -> None:
    put_in_force(scripts, parse(f'[queues."{queue}"]\nmax_pending = {most}', "q.toml"), "a test")


@pytest.mark.parametrize("path", CHATS)
def test_an_unknown_model_is_refused_at_once_with_the_nearest_name(served: Served, path: str) -> None:
    reply = ask(served, path, "ecko")
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert error["code"] == "seat.none_live"
    assert "llm:echo" in error["message"]


def test_a_job_is_held_until_somebody_serves_it_again(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with benches(server, tmp_path_factory.mktemp("home"), hold=600.0) as place:
        scripts, gateway = place.grid.scripts, place.gateway
        holding = gateway.server.config.app.state.door.holding
        graph = {"root": stage("bench_echo", slug="lately")}
        with idle(scripts, "t.lately", "bench:lately"):
            wait_for(lambda: holding._is_expected("bench:lately"))
        replies: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: replies.append(gateway.http.post("/jobs", json={"graph": graph}))
        )
        thread.start()
        wait_for(lambda: holding.held)
        with idle(scripts, "t.lately", "bench:lately"):
            thread.join(30)
        assert replies[0].status_code == 202, replies[0].text


@pytest.mark.parametrize("path", CHATS)
def test_a_full_queue_in_each_wires_own_words(served: Served, scripts: Scripts, path: str) -> None:
    with idle(scripts, "t.filled", "llm:filled"):
        bound(scripts, "llm:filled", 1)
        graph = {"root": stage("llm_complete", model="filled", prompt="x")}
        job = served.gateway.post("/jobs", {"graph": graph}, 202)["job"]
        reply = ask(served, path, "filled")
        served.gateway.ask("DELETE", f"/jobs/{job}", 200)
    assert reply.status_code == 429
    assert int(reply.headers["retry-after"]) >= 1
    error = reply.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert error["code"] == "queue.full"
    assert {name for name in SOON if error.get(name)} == set(SOON)
    assert error["bottleneck"] == "max_pending of llm:filled (1)"


@pytest.mark.parametrize("path", CHATS)
def test_what_no_queue_may_ever_hold_is_not_to_be_asked_again(
    served: Served, scripts: Scripts, path: str
) -> None:
    bound(scripts, "llm:echo", 0)
    reply = ask(served, path, "echo")
    assert (reply.status_code, reply.headers["x-gridq-code"]) == (400, "queue.full")
    assert "retry-after" not in reply.headers


def test_where_it_would_stand_and_when_it_would_start(served: Served, scripts: Scripts) -> None:
    with idle(scripts, "t.busy", "llm:busy"):
        bound(scripts, "llm:busy", 4)
        graph = {"root": stage("llm_complete", model="busy", prompt="x")}
        jobs = [served.gateway.post("/jobs", {"graph": graph}, 202)["job_id"] for _ in range(4)]

        def refused(status: int, **more: Any) -> Any:
            reply = served.gateway.http.post("/jobs", json={"graph": graph, **more})
            assert reply.status_code == status
            assert int(reply.headers["retry-after"]) >= 1
            return reply.json()["error"]

        def told() -> Any:
            return refused(429)["position"]

        assert wait_for(told, true=lambda position: position == 5)  # what was read counts for a moment
        full = refused(429)
        assert full["starts_in"].keys() == {"low", "p50", "high"}
        late = refused(503, deadline=2)
        assert late["code"] == "job.deadline_unreachable"
        assert late["bottleneck"] == "the only lane of llm:busy"
        assert late["starts_in"]["low"] > 2
        assert late["fix"].startswith("use llm:any, which would run it now, or raise the deadline to ")
        chat = ask(served, "/v1/chat/completions", "busy", **{"x-gridq-deadline": "2"})
        assert chat.status_code == 503
        assert chat.json()["error"]["starts_in"] == late["starts_in"]
        for job in jobs:
            served.gateway.ask("DELETE", f"/jobs/{job}", 200)
