"""Admission by a gateway in each API format: jobs that wait, and refusals with their details."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from gridq.errors import SeatRateLimited
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import lift, put_in_force
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Advertisement, Json, ServiceTime, StageCall
from gridq.seats import registry
from gridq.store.scripts import Scripts
from tests.builders import parallel, seq, stage
from tests.gateways import benches
from tests.integration.gateway.conftest import Served
from tests.local_grid import LocalGrid, advertised
from tests.refusals import check_refusal
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

HELLO = [{"role": "user", "content": "hello"}]
CHATS = ("/v1/chat/completions", "/v1/messages")


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
    """Keep a seat live that takes no stage, and reports this service time."""
    ad = Advertisement(
        seat=seat, machine="t", worker=f"{seat}@t", incarnation="i", kind="llm", concurrency=1,
        queues=[queue],
        service={queue: ServiceTime(n=50, mean=took, p50=took, p90=took)},
    )  # fmt: skip
    with advertised(scripts, ad):
        yield


def bound(scripts: Scripts, queue: str, most: int, policy: str = "reject") -> None:
    text = f'[queues."{queue}"]\nmax_pending = {most}\npolicy = "{policy}"'
    put_in_force(scripts, parse(text, "q.toml"), "a test")


@pytest.mark.parametrize("path", CHATS)
def test_an_unknown_model_is_refused_at_once_with_the_nearest_name(served: Served, path: str) -> None:
    reply = ask(served, path, "ecko")
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert error["code"] == "seat.none_live"
    assert "llm:echo" in error["message"]
    assert (error["position"], error["starts_in"], error["retry_after"]) == (None, None, None)
    assert "retry-after" not in reply.headers, "no waiting helps"


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize(
    ("headers", "bottleneck", "fix"),
    [
        ({"x-gridq-pin": "m.gone"}, "the seat m.gone is not live", "pin another seat or none"),
        (
            {"x-gridq-avoid": "m.api"},
            "the option avoid excludes every live seat of llm:echo",
            "avoid fewer seats",
        ),
    ],
)
def test_excluded_seats_give_no_queue_position(
    served: Served, path: str, headers: dict[str, str], bottleneck: str, fix: str
) -> None:
    error = check_refusal(ask(served, path, "echo", **headers), 503, "seat.none_live")
    assert error["bottleneck"] == bottleneck
    assert (error["position"], error["starts_in"]) == (None, None), "though its slots are free"
    assert error["fix"].startswith(fix)


def test_unserved_queues_give_no_queue_position(served: Served) -> None:
    known, unknown = (stage("llm_complete", model=model, prompt="x") for model in ("echo", "nobody"))
    for graph in (unknown, seq(known, unknown)):
        reply = served.gateway.http.post("/jobs", json={"graph": {"root": graph}})
        error = check_refusal(reply, 503, "seat.none_live")
        assert (error["capability"], error["bottleneck"]) == ("llm:nobody", "no live seat serves llm:nobody")
        assert (error["position"], error["starts_in"]) == (None, None)


def test_embeddings_of_a_model_without_them_are_the_requests_fault(served: Served) -> None:
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=3) as client,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        client.embeddings.create(model="echo", input="x")
    error: Any = refused.value.body
    assert error["gridq_code"] == "seat.demand_unmet"
    assert "`embeddings = true`" in error["message"]
    assert "retry-after" not in refused.value.response.headers


@pytest.mark.parametrize("path", CHATS)
def test_a_job_that_waits_for_a_seat_is_not_refused(served: Served, scripts: Scripts, path: str) -> None:
    with ThreadPoolExecutor() as threads:
        reply = threads.submit(ask, served, path, "sometime", **{"x-gridq-wait-for-seat": "1"})
        wait_for(lambda: scripts.client.exists(scripts.keys("classes", "llm:sometime")))
        assert served.gateway.ask("DELETE", f"/jobs/{served.grid.client.jobs(1)[0].job}", 200)["cancelled"]
        assert reply.result().status_code == 409


@pytest.mark.parametrize("path", CHATS)
def test_a_dropped_job_has_the_details_of_a_refusal(served: Served, scripts: Scripts, path: str) -> None:
    with idle(scripts, "t.narrow", "llm:narrow"), ThreadPoolExecutor() as threads:
        bound(scripts, "llm:narrow", 1, "drop-oldest-batch")
        batch = threads.submit(ask, served, path, "narrow", **{"x-gridq-priority": "batch"})
        wait_for(lambda: scripts.client.exists(scripts.keys("classes", "llm:narrow")))
        graph = {"root": stage("llm_complete", model="narrow", prompt="x")}
        job = served.gateway.post("/jobs", {"graph": graph}, 202)["job"]
        error = check_refusal(batch.result(), 429, "queue.dropped")
        served.gateway.ask("DELETE", f"/jobs/{job}", 200)
    assert (error["bottleneck"], error["capability"]) == ("max_pending of llm:narrow (1)", "llm:narrow")
    assert error["fix"].startswith("submit it again when there is less to do")


def over_its_rate(stage: StageCall, value: Json, context: StageContext) -> Json:
    raise SeatRateLimited("The endpoint's rate limit is reached", {"status": 429, "retry_after": 0.01})


@pytest.mark.parametrize("path", CHATS)
def test_rate_limited_attempts_name_the_seat(served: Served, path: str) -> None:
    seats = {"t.hasty": ["llm:hasty"]}
    with LocalGrid(served.grid.scripts.client, served.config, seats, concurrency=1, runner=over_its_rate):
        error = check_refusal(ask(served, path, "hasty"), 429, "stage.attempts_exhausted")
    assert (error["bottleneck"], error["capability"]) == ("the rate limit of t.hasty", "llm:hasty")
    assert (error["position"], error["starts_in"], error["fix"]) == (None, None, "try again in 1 s")


def test_a_quota_says_when_to_retry_or_that_waiting_does_not_help(served: Served, scripts: Scripts) -> None:
    put_in_force(
        scripts, parse("[agents.eve]\nmonthly_jobs = 1\n[agents.bob]\nmonthly_jobs = 0", "q.toml"), "t"
    )
    graph = {"root": stage("text_template", template="x")}

    def submit(agent: str) -> httpx.Response:
        return served.gateway.http.post("/jobs", json={"graph": graph, "agent": agent})

    assert submit("eve").status_code == 202
    error = check_refusal(submit("eve"), 429, "quota.agent_jobs")
    assert (error["bottleneck"], error["position"]) == ("agents.eve.monthly_jobs", None)
    never = submit("bob")
    assert (never.status_code, never.json()["error"]["retry_after"]) == (429, None)
    assert "retry-after" not in never.headers


def test_a_job_waits_until_its_queue_is_served_again(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with benches(server, tmp_path_factory.mktemp("home"), admission_wait=600.0) as place:
        scripts, gateway = place.grid.scripts, place.gateway
        holding = gateway.server.config.app.state.grid.admission_wait
        graph = {"root": stage("bench_echo", slug="lately")}
        with idle(scripts, "t.lately", "bench:lately"):
            pass
        replies: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: replies.append(gateway.http.post("/jobs", json={"graph": graph}))
        )
        thread.start()
        wait_for(lambda: holding.waiting_jobs)
        with idle(scripts, "t.lately", "bench:lately"):
            thread.join(30)
        assert replies[0].status_code == 202, replies[0].text


@pytest.mark.parametrize("path", CHATS)
def test_a_full_queue_in_each_api_format(served: Served, scripts: Scripts, path: str) -> None:
    with idle(scripts, "t.filled", "llm:filled"):
        bound(scripts, "llm:filled", 1)
        graph = {"root": stage("llm_complete", model="filled", prompt="x")}
        job = served.gateway.post("/jobs", {"graph": graph}, 202)["job"]
        reply = ask(served, path, "filled")
        served.gateway.ask("DELETE", f"/jobs/{job}", 200)
    error = check_refusal(reply, 429, "queue.full")
    assert (error["type"], error["capability"]) == ("rate_limit_error", "llm:filled")
    assert error["bottleneck"] == "max_pending of llm:filled (1)"


@pytest.mark.parametrize("path", CHATS)
def test_a_job_too_large_for_any_queue_is_not_retried(served: Served, scripts: Scripts, path: str) -> None:
    bound(scripts, "llm:echo", 0)
    reply = ask(served, path, "echo")
    assert (reply.status_code, reply.headers["x-gridq-code"]) == (400, "queue.full")
    assert "retry-after" not in reply.headers
    assert reply.json()["error"]["retry_after"] is None


DEAR = {
    "name": "dear_template",
    "input": {"kind": "Any"},
    "output": {"kind": "Text"},
    "effects": [{"effect": "Pure"}, {"effect": "Cost", "cents": 3}],
    "implementation": "builtin:text_template",
}


def test_a_job_over_its_quota_forever_is_not_retried(served: Served, scripts: Scripts) -> None:
    registry.publish_stages(scripts.client, scripts.keys, "m", [DEAR], 600.0)
    bound(scripts, "llm:echo", 1)
    call = stage("llm_complete", model="echo", prompt="x")
    two: dict[str, Any] = {"graph": {"root": parallel(a=call, b=call)}}
    dear: dict[str, Any] = {"graph": {"root": stage("dear_template", template="x")}, "budget_cents": 2}
    for body, status, code in ((two, 400, "queue.full"), (dear, 402, "quota.job_budget")):
        reply = served.gateway.http.post("/jobs", json=body)
        assert reply.status_code == status, reply.text
        assert reply.headers["x-gridq-code"] == code
        assert "retry-after" not in reply.headers
        assert reply.json()["error"]["retry_after"] is None


def test_a_refusal_has_position_and_start_estimate(served: Served, scripts: Scripts) -> None:
    with idle(scripts, "t.busy", "llm:busy"):
        bound(scripts, "llm:busy", 4)
        graph = {"root": stage("llm_complete", model="busy", prompt="x")}
        jobs = [served.gateway.post("/jobs", {"graph": graph}, 202)["job_id"] for _ in range(4)]

        def check_refusal(status: int, **more: Any) -> Any:
            reply = served.gateway.http.post("/jobs", json={"graph": graph, **more})
            assert reply.status_code == status
            assert int(reply.headers["retry-after"]) >= 1
            return reply.json()["error"]

        def read_position() -> Any:
            return check_refusal(429)["position"]

        assert wait_for(
            read_position, true=lambda position: position == 5
        )  # what was read counts for a moment
        full = check_refusal(429)
        assert full["starts_in"].keys() == {"low", "p50", "high"}
        late = check_refusal(503, deadline=2)
        assert late["code"] == "job.deadline_unreachable"
        assert late["bottleneck"] == "the only slot of llm:busy"
        assert late["starts_in"]["low"] > 2
        assert late["fix"].startswith(
            "use the model 'any', which would run it now, or raise the deadline to "
        )
        chat = ask(served, "/v1/chat/completions", "busy", **{"x-gridq-deadline": "2"})
        assert chat.status_code == 503
        assert chat.json()["error"]["starts_in"] == late["starts_in"]
        for job in jobs:
            served.gateway.ask("DELETE", f"/jobs/{job}", 200)
