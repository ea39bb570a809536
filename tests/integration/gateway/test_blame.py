"""What an endpoint refuses is blamed on what failed: the request, one model at this seat, or the seat."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gridq.config.settings import Settings
from gridq.execution.session import Session
from tests.fakes.refusing_server import RefusingServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

HELLO = [{"role": "user", "content": "hello"}]


@dataclass
class Seats:
    """A gateway before two seats, or one, each with the models `m` and `n`, of the families `f` and `g`."""

    gateway: Gateway
    grid: LocalGrid
    endpoints: list[RefusingServer]

    def ask(self, model: str) -> httpx.Response:
        body = {"model": model, "messages": HELLO}
        return self.gateway.http.post("/v1/chat/completions", json=body)

    def session(self, at: int = 0) -> Session:
        return self.grid.sessions[f"m.s{at}"]

    def list_models(self) -> set[str]:
        return {model["id"] for model in self.gateway.get("/v1/models")["data"]}


@contextmanager
def run_seats(server: EmbeddedServer, home: Path, number: int, **given: Any) -> Iterator[Seats]:
    config = Settings(
        broker_url=server.url,
        prefix=f"bl{secrets.token_hex(4)}:",
        home=home,
        retry_backoff=0.01,
        renew_ms=100,
        admission_wait=1.0,
        **given,
    )
    models: Any = [{"name": "m", "families": ["f"]}, {"name": "n", "families": ["g"]}]
    with ExitStack() as stack:
        endpoints = [stack.enter_context(RefusingServer()) for _ in range(number)]
        runners = {f"m.s{at}": LlmRunner(each.url, models) for at, each in enumerate(endpoints)}
        grid = stack.enter_context(llm_grid(config, runners, concurrency=4))
        yield Seats(stack.enter_context(serving(config)), grid, endpoints)


@pytest.fixture
def pair(server: EmbeddedServer, tmp_path: Path) -> Iterator[Seats]:
    with run_seats(server, tmp_path, 2) as seats:
        yield seats


@pytest.fixture
def single(server: EmbeddedServer, tmp_path: Path) -> Iterator[Seats]:
    with run_seats(server, tmp_path, 1) as seats:
        yield seats


NO_MODEL = {"error": {"message": "The model `m` does not exist.", "code": "model_not_found"}}
NO_ACCESS = {"error": {"message": "Project `p` does not have access to model `m`", "code": "model_not_found"}}


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, NO_MODEL), (403, NO_ACCESS), (404, {"detail": "Not Found"}), (404, b"<html>"), (405, b"")],
)
def test_a_model_that_an_endpoint_refuses_rests_there_and_everything_else_goes_on(
    pair: Seats, status: int, body: Any
) -> None:
    bad = pair.endpoints[0]
    bad.refusals["m"] = (status, body)
    assert [pair.ask("m").status_code for _ in range(12)] == [200] * 12
    assert bad.calls.count("m") <= 1, "its cooldown begins with the first refusal"
    wait_for(lambda: pair.ask("m") and bad.calls.count("m"))
    assert bad.calls.count("m") == 1
    session = pair.session()
    wait_for(lambda: "m" in session.models.in_cooldown)
    assert session.unavailable is None
    assert "llm:n" in session.queues
    assert "llm:any" in session.queues
    assert not {"llm:m", "llm:f"} & set(session.queues)
    # its other model goes on there, also for `any`
    for model in ("n", "g", "any"):
        bad.calls = []
        wait_for(lambda model=model: pair.ask(model).status_code == 200 and "n" in bad.calls)
        assert "m" not in bad.calls
    assert not pair.session(1).models.in_cooldown
    assert "m" in pair.list_models()


@pytest.mark.parametrize(
    ("status", "body"), [(404, NO_MODEL), (403, NO_ACCESS), (404, b"<html>"), (405, b"")]
)
def test_with_no_other_seat_the_client_is_told(single: Seats, status: int, body: Any) -> None:
    [endpoint] = single.endpoints
    endpoint.refusals["m"] = (status, body)
    reply = single.ask("m")  # waits as long as new work does
    assert reply.status_code == 503, reply.text
    assert endpoint.calls == ["m"]
    assert single.ask("n").status_code == 200
    wait_for(lambda: "m" not in single.list_models())
    again = single.ask("m")
    assert again.status_code == 503
    for refused in (reply, again):
        assert "m.s0" in json.dumps(refused.json()["error"])
        assert int(refused.headers["retry-after"]) > 10
    assert endpoint.calls == ["m", "n"]


def test_with_one_attempt_the_client_gets_the_endpoints_own_404(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with run_seats(server, tmp_path, 1, max_attempts=1) as seats:
        seats.endpoints[0].refusals["m"] = (404, NO_MODEL)
        reply = seats.ask("m")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("status", [409, 425, 403, 418])
def test_a_refusal_that_blames_nobody_is_asked_elsewhere_and_rests_nothing(pair: Seats, status: int) -> None:
    bad = pair.endpoints[0]
    bad.refusals["m"] = (status, b"{}")
    assert [pair.ask("m").status_code for _ in range(5)] == [200] * 5
    wait_for(lambda: pair.ask("m") and bad.calls)
    session = pair.session()
    assert not session.in_cooldown
    assert "llm:m" in session.queues


MODERATED = {
    "code": "denied",
    "error": "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO",
}


@pytest.mark.parametrize(
    ("status", "body"), [(403, MODERATED), (400, {"error": {"message": "no"}}), (422, b"")]
)
def test_a_request_at_fault_fails_at_once_and_takes_the_seat_from_nobody(
    pair: Seats, status: int, body: Any
) -> None:
    for endpoint in pair.endpoints:
        endpoint.refusals["m"] = (status, body)
    assert [pair.ask("m").status_code for _ in range(12)] == [status] * 12
    assert sum(len(endpoint.calls) for endpoint in pair.endpoints) == 12, "each is asked once"
    assert not any(pair.session(at).in_cooldown for at in (0, 1))


def test_overloads_of_one_request_take_the_seat_from_nobody(single: Seats) -> None:
    [endpoint] = single.endpoints
    endpoint.refusals["m"] = (529, b"")
    assert single.ask("m").status_code == 503
    assert endpoint.calls == ["m"] * 3, "all of its attempts"
    assert not single.session().in_cooldown
    assert single.ask("n").status_code == 200


def test_a_refused_key_rests_the_seat_and_not_a_model(pair: Seats) -> None:
    bad = pair.endpoints[0]
    bad.refusals["m"] = (401, {"error": {"message": "Incorrect API key provided"}})
    assert [pair.ask("m").status_code for _ in range(8)] == [200] * 8
    wait_for(lambda: pair.ask("m") and bad.calls)
    session = wait_for(pair.session, true=lambda session: session.unavailable is not None)
    assert session.unavailable.state == "key_refused"
    assert not session.models.in_cooldown


def test_one_request_at_a_time_tries_a_model_whose_rest_has_ended(single: Seats) -> None:
    [endpoint] = single.endpoints
    endpoint.refusals["m"] = (404, NO_MODEL)
    assert single.ask("m").status_code == 503
    session = single.session()
    assert session.end_cooldown()
    assert single.ask("m").status_code == 503
    assert endpoint.calls == ["m", "m"], "the trial failed, and nothing else was sent"
    until = session.models.in_cooldown["m"].until
    assert until is not None
    assert until - time.time() > 60, "the next cooldown is twice as long"
    del endpoint.refusals["m"]
    endpoint.gate.clear()
    session.end_cooldown()
    with ThreadPoolExecutor(5) as threads:
        replies = [threads.submit(single.ask, "m") for _ in range(4)]
        wait_for(lambda: len(endpoint.calls) == 3)
        time.sleep(0.5)
        assert len(endpoint.calls) == 3, "the others wait for the trial"
        replies.append(threads.submit(single.ask, "n"))
        wait_for(lambda: "n" in endpoint.calls)
        assert len(endpoint.calls) == 4, "another model goes on meanwhile"
        endpoint.gate.set()
        assert [reply.result().status_code for reply in replies] == [200] * 5
    wait_for(lambda: not session.models.in_cooldown and single.ask("m").status_code == 200)


@pytest.mark.parametrize(
    ("status", "refusal"), [(404, NO_MODEL), (401, {"error": {"message": "Incorrect API key provided"}})]
)
def test_the_first_word_of_a_stream_shows_that_its_model_and_seat_work(
    single: Seats, status: int, refusal: Any
) -> None:
    """Others need not wait for the end of a stream that tries a model, or the whole seat."""
    [endpoint] = single.endpoints
    endpoint.refusals["m"] = (status, refusal)
    assert single.ask("m").status_code == 503
    del endpoint.refusals["m"]
    single.session().end_cooldown()
    endpoint.gate.clear()
    body = {"model": "m", "messages": HELLO, "stream": True}
    with single.gateway.http.stream("POST", "/v1/chat/completions", json=body) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if '"hi"' in line)
        with ThreadPoolExecutor(1) as threads:
            other = threads.submit(single.ask, "m")
            wait_for(lambda: len(endpoint.calls) == 3)
            endpoint.gate.set()
            assert other.result().status_code == 200
        assert [line for line in lines if line][-1] == "data: [DONE]"
