"""Workers that enrol over HTTP, like those of noether-grid: a gateway sends stages to their `/execute`."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from gridq.config.settings import Settings
from gridq.gateway.grid import models
from gridq.gateway.http_workers import enrolment, hosting
from gridq.protocol import queue_names
from gridq.seats import registry
from gridq.seats.registry import LiveSeat
from gridq.store.connection import connect
from gridq.store.keys import Keys
from gridq.views.audit import find_keys_without_ttl
from tests.builders import stage
from tests.fakes.http_server import Handler, LocalServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.refusals import check_refusal
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

SECRET = "the-grids-secret"
SHOWN = {"X-Grid-Secret": SECRET}


class ForeignWorker(LocalServer):
    """A worker like those of noether-grid. `answer` returns the status and the body for a request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], tuple[int, Any]] = self.succeed
        super().__init__(_handler(self))

    @staticmethod
    def succeed(request: dict[str, Any]) -> tuple[int, Any]:
        result = {"job_id": request["job_id"], "status": "ok", "output": {"input": request["input"]}}
        return 200, {**result, "spent_cents": 3, "completed_at": "2026-01-01T00:00:00Z"}


def _handler(state: ForeignWorker) -> type[Handler]:
    class Worker(Handler):
        def do_POST(self) -> None:
            request = self.body()
            state.requests.append({"path": self.path, **request})
            self.answer(*state.answer(request))

    return Worker


@pytest.fixture(scope="module")
def config(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    made = Settings(
        broker_url=SecretStr(server.url),
        prefix=f"e{secrets.token_hex(4)}:",
        home=tmp_path_factory.mktemp("home"),
        retry_backoff=0.0,
        lease_ms=1000,
        renew_ms=200,
        sweep_ms=100,
        drain=2.0,
    )
    with connect(server.url, name="tests") as client:
        with LocalGrid(client, made, {"m.router": [queue_names.PURE]}):
            yield made
        for key in client.scan_iter(f"{made.prefix}*", count=1000):
            client.unlink(key)


@pytest.fixture(scope="module")
def gateway(config: Settings) -> Iterator[Gateway]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosting, "POLL_SECONDS", 0.05)
        with serving(config, worker_secret=SecretStr(SECRET), admission_wait=0.2) as started:
            yield started


@pytest.fixture
def worker(gateway: Gateway, config: Settings) -> Iterator[ForeignWorker]:
    with ForeignWorker() as made:
        yield made
        gateway.http.delete("/workers/alice", headers=SHOWN)
        wait_for(lambda: not seats(config))


def enrol(
    gateway: Gateway, worker: ForeignWorker, config: Settings, model: str = "claude-opus-4-6", **more: Any
) -> Any:
    offered = {"provider": "anthropic", "model": model, "auth_via": "cli", **more}
    offered = {"budget_monthly_cents": 0, "budget_remaining_cents": 0, **offered}
    about = {
        "worker_id": "alice", "url": worker.url, "capabilities": [offered], "noether_version": "0.3.2",
        "heartbeat_interval_secs": 10,
    }  # fmt: skip
    enrolled = gateway.post("/workers", about, 201, headers=SHOWN)
    wait_for(lambda: seats(config), true=lambda found: [f"llm:{model}"] in [seat.queues for seat in found])
    return enrolled


def seats(config: Settings) -> list[LiveSeat]:
    """Return the seats of enrolled workers, read from the server itself: a gateway may be a second behind."""
    with connect(config.broker_url.get_secret_value(), name="tests") as client:
        live = registry.read_live_seats(client, Keys(config.prefix), routers=False)
    return [seat for seat in live if not seat.stale]


def ask(gateway: Gateway, model: str | list[str] = "claude-opus-4-6", **options: Any) -> Any:
    graph = {"root": stage("llm_complete", model=model, prompt="p")}
    job = gateway.post("/jobs", {"graph": graph, "input": {}, **options}, 202)["job"]
    return gateway.get(f"/jobs/{job}?wait=30")


def test_an_enrolled_worker_runs_the_stages_that_need_its_model(
    gateway: Gateway, worker: ForeignWorker, config: Settings
) -> None:
    assert enrol(gateway, worker, config) == {"worker_id": "alice", "seat": "http.alice"}
    done = ask(gateway)
    assert (done["state"], done["dispatched_to"], done["spent_cents"]) == ("done", "alice@http", 3)
    [request] = worker.requests
    assert request["path"] == "/execute"
    assert request["job_id"] == done["job"]
    assert request["graph"]["description"] == done["rows"][0]["stage"] == "llm_complete"
    assert request["graph"]["root"]["op"] == "Stage"
    assert done["result"]["output"] == {"input": request["input"]}
    assert ask(gateway, ["nobody-has-it", "claude-opus-4-6"])["state"] == "done"
    assert worker.requests[-1]["input"]["model"] == "claude-opus-4-6"  # it knows no list


@pytest.mark.parametrize("path", ["/workers", "/workers/alice/heartbeat"])
def test_a_key_that_stands_twice_in_what_a_worker_sends_is_refused(gateway: Gateway, path: str) -> None:
    raw = b'{"worker_id":"alice","worker_id":"bob"}'
    reply = gateway.http.post(path, content=raw, headers={**SHOWN, "content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["path"] == "worker_id"


def test_an_enrolled_worker_is_listed_for_noether_clients(
    gateway: Gateway, worker: ForeignWorker, config: Settings
) -> None:
    enrol(gateway, worker, config, budget_monthly_cents=500, budget_remaining_cents=1, rate_limit_rpm=600)
    seat = gateway.get("/workers/http.alice")
    assert (seat["worker_id"], seat["url"], seat["concurrency"]) == ("alice", worker.url, hosting.CONCURRENCY)
    ask(gateway)
    seat = wait_for(
        lambda: gateway.get("/workers/http.alice"), true=lambda found: found["budget_left"] == 4_970_000
    )
    [offered] = seat["capabilities"]
    assert (offered["provider"], offered["auth_via"]) == ("anthropic", "cli")
    assert (offered["budget_monthly_cents"], offered["budget_remaining_cents"]) == (500, 497)
    # A heartbeat that says what was left at first overwrites nothing.
    beat = {"worker_id": "alice", "in_flight_jobs": 0}
    gateway.post("/workers/alice/heartbeat", beat, 204, headers=SHOWN)
    assert gateway.get("/workers/http.alice")["budget_left"] == 4_970_000


def test_a_failed_stage_is_not_retried(gateway: Gateway, worker: ForeignWorker, config: Settings) -> None:
    enrol(gateway, worker, config)
    worker.answer = lambda request: (200, {"status": "failed", "error": "no such stage", "spent_cents": 0})
    done = ask(gateway)
    assert (done["state"], done["error"]["code"]) == ("failed", "stage.failed")
    assert "no such stage" in done["result"]["error"]
    assert len(worker.requests) == 1


@pytest.mark.parametrize(
    "fault",
    [
        (500, {}),
        (404, {}),
        (200, []),
        (200, {"no": "status"}),
        (200, {"status": "abandoned", "error": "died"}),
    ],
    ids=str,
)
def test_a_failing_worker_is_retried(
    gateway: Gateway, worker: ForeignWorker, config: Settings, fault: tuple[int, Any]
) -> None:
    enrol(gateway, worker, config)
    faults = [fault]
    worker.answer = lambda request: faults.pop() if faults else worker.succeed(request)
    done = ask(gateway)
    assert (done["state"], len(worker.requests)) == ("done", 2)
    assert done["rows"][-1]["failures"] == 1


def test_a_cancelled_job_hangs_up_on_its_worker(
    gateway: Gateway, worker: ForeignWorker, config: Settings
) -> None:
    enrol(gateway, worker, config)
    released = threading.Event()

    def slow(request: dict[str, Any]) -> tuple[int, Any]:
        released.wait(30)
        return worker.succeed(request)

    worker.answer = slow
    graph = {"root": stage("llm_complete", model="claude-opus-4-6", prompt="p")}
    job = gateway.post("/jobs", {"graph": graph, "input": {}}, 202)["job"]
    wait_for(lambda: worker.requests)
    gateway.ask("DELETE", f"/jobs/{job}", 200)
    wait_for(lambda: gateway.get("/workers/http.alice"), true=lambda seat: seat["busy"] == 0)
    released.set()


def test_a_heartbeat_may_change_the_offer(gateway: Gateway, worker: ForeignWorker, config: Settings) -> None:
    enrol(gateway, worker, config)
    offered = {"provider": "openai", "model": "gpt-4-turbo", "auth_via": "api_key"}
    gateway.post(
        "/workers/alice/heartbeat", {"capabilities": [offered], "in_flight_jobs": 0}, 204, headers=SHOWN
    )
    wait_for(
        lambda: [seat.queues for seat in seats(config)], true=lambda queues: queues == [["llm:gpt-4-turbo"]]
    )
    assert ask(gateway, "gpt-4-turbo")["state"] == "done"


def test_an_enrolled_worker_gets_no_model_api_requests(
    gateway: Gateway, worker: ForeignWorker, config: Settings
) -> None:
    enrol(gateway, worker, config)
    body = {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}]}
    reply = gateway.http.post("/v1/chat/completions", json=body, headers={"x-gridq-deadline": "20"})
    assert reply.status_code >= 500
    assert "cannot run requests of a model API" in reply.text
    assert worker.requests == []
    with connect(config.broker_url.get_secret_value(), name="tests") as client:
        assert models.read_models(client, Keys(config.prefix)).records == {}, (
            "the model APIs' clients would ask for it"
        )


def test_another_gateway_takes_over_workers_of_a_stopped_one(
    config: Settings, gateway: Gateway, worker: ForeignWorker
) -> None:
    with serving(config, worker_secret=SecretStr(SECRET)) as first:
        enrol(first, worker, config)
        hosts = {id(each): each.server.config.app.state.worker_host for each in (first, gateway)}
        wait_for(lambda: [host for host in hosts.values() if "alice" in host._seats])
        assert sum("alice" in host._seats for host in hosts.values()) == 1
    wait_for(lambda: "alice" in hosts[id(gateway)]._seats)
    assert ask(gateway)["state"] == "done"


def test_a_stopping_gateway_releases_workers_while_requests_end(
    worker: ForeignWorker, gateway: Gateway, config: Settings
) -> None:
    """It does not wait for one after the other, each for as long as the drain."""
    runs, go_on = threading.Event(), threading.Event()

    def hold(request: dict[str, Any]) -> tuple[int, Any]:
        runs.set()
        go_on.wait(30)
        return worker.succeed(request)

    worker.answer = hold
    long = config.model_copy(update={"drain": 60.0, "prefix": f"o{secrets.token_hex(4)}:"})
    with (
        connect(config.broker_url.get_secret_value(), name="tests") as client,
        LocalGrid(client, long, {"m.router": [queue_names.PURE]}),
        serving(long, worker_secret=SecretStr(SECRET), admission_wait=0.2) as own,
    ):
        enrol(own, worker, long)
        graph = {"root": stage("llm_complete", model="claude-opus-4-6", prompt="p")}
        job = own.post("/jobs", {"graph": graph, "input": {}}, 202)["job"]
        assert runs.wait(30)
        asks = threading.Thread(target=own.http.get, args=(f"/jobs/{job}?wait=60",))
        asks.start()
        wait_for(lambda: "gridq_http_open_requests 2" in own.http.get("/metrics").text)
        own.server.should_exit = True
        wait_for(lambda: [seat.state for seat in seats(long)] == ["draining"])
        assert asks.is_alive()
        go_on.set()
        asks.join(30)
    with connect(config.broker_url.get_secret_value(), name="tests") as client:
        client.unlink(*client.scan_iter(f"{long.prefix}*", count=1000))


def test_a_worker_silent_for_three_heartbeats_is_forgotten(
    config: Settings, gateway: Gateway, worker: ForeignWorker
) -> None:
    enrol(gateway, worker, config)
    with connect(config.broker_url.get_secret_value(), name="tests") as client:
        assert not find_keys_without_ttl(client, config.prefix)
        client.pexpire(f"{config.prefix}.worker:alice", 1)
    wait_for(lambda: not seats(config))
    gateway.post("/workers/alice/heartbeat", {"in_flight_jobs": 0}, 404, headers=SHOWN)


def test_a_removed_worker_gets_no_more_stages(
    gateway: Gateway, worker: ForeignWorker, config: Settings
) -> None:
    enrol(gateway, worker, config)
    assert gateway.http.delete("/workers/alice", headers=SHOWN).status_code == 204
    assert gateway.http.delete("/workers/alice", headers=SHOWN).status_code == 404
    wait_for(lambda: not seats(config))
    graph = {"root": stage("llm_complete", model="claude-opus-4-6", prompt="p")}
    assert gateway.http.post("/jobs", json={"graph": graph}).status_code == 503


def test_the_number_of_workers_is_bounded(
    gateway: Gateway, worker: ForeignWorker, config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "MAX_WORKERS", 1)
    enrol(gateway, worker, config)
    other = {"worker_id": "bob", "url": worker.url}
    error = check_refusal(gateway.http.post("/workers", json=other, headers=SHOWN), 503, "workers.full")
    assert (error["bottleneck"], error["limit"]) == ("the limit of 1 workers over HTTP", 1)
    enrol(gateway, worker, config, "another-model")
    assert gateway.http.delete("/workers/alice", headers=SHOWN).status_code == 204
    gateway.post("/workers", other, 201, headers=SHOWN)
    assert gateway.http.delete("/workers/bob", headers=SHOWN).status_code == 204


@pytest.mark.parametrize("headers", [{}, {"X-Grid-Secret": "wrong"}, {"X-Grid-Secret": ""}])
def test_enrolling_needs_the_secret(gateway: Gateway, headers: dict[str, str]) -> None:
    gateway.post("/workers", {"worker_id": "eve", "url": "http://127.0.0.1:1"}, 401, headers=headers)
    gateway.post("/workers/eve/heartbeat", {}, 401, headers=headers)
    assert gateway.http.delete("/workers/eve", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"worker_id": "a b", "url": "http://h"},
        {"worker_id": "a", "url": "file:///etc/passwd"},
        {"worker_id": "a", "url": "http://user:pw@h"},
        {"worker_id": "a", "url": "http://h", "capabilities": [{"provider": "p"}]},
        {"worker_id": "a", "url": "http://h", "heartbeat_interval_secs": 0},
    ],
)
def test_an_invalid_advertisement_is_refused(gateway: Gateway, body: Any) -> None:
    assert gateway.post("/workers", body, 400, headers=SHOWN)["error"]["path"].startswith("body")


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://2852039166",  # the same, as one number
        "http://[fe80::1]:8080",
        "http://[::ffff:169.254.169.254]",
        "http://[2002:a9fe:a9fe::1]",
        "http://[64:ff9b::169.254.169.254]",
        "http://100.100.100.200",
        "http://[fd00:ec2::254]",
        "http://0.0.0.0:8080",
        "http://255.255.255.255",
        "http://224.0.0.1",
        "http://127.0.0.1:+8080",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:８０８０",
        "http://127.0.0.1:8_080",
    ],
)
def test_a_url_that_only_the_gateway_may_reach_is_refused(gateway: Gateway, url: str) -> None:
    error = gateway.post("/workers", {"worker_id": "eve", "url": url}, 400, headers=SHOWN)["error"]
    assert (error["code"], error["path"]) == ("request.invalid", "body.url")
    assert gateway.http.delete("/workers/eve", headers=SHOWN).status_code == 404


def test_only_a_worker_of_the_gateways_machine_may_have_its_loopback(
    config: Settings, worker: ForeignWorker
) -> None:
    """Behind a proxy that is trusted, a client's address is the one that it reports."""
    secret, away = SecretStr(SECRET), {**SHOWN, "X-Forwarded-For": "203.0.113.9"}
    with serving(config, worker_secret=secret, trusted_proxies=("127.0.0.1",)) as own:
        for url in (worker.url, worker.url.replace("127.0.0.1", "localhost")):
            own.post("/workers", {"worker_id": "eve", "url": url}, 400, headers=away)
        own.post("/workers", {"worker_id": "eve", "url": worker.url, "is_local": True}, 400, headers=away)
        own.post("/workers", {"worker_id": "bob", "url": worker.url}, 201, headers=SHOWN)
        assert own.http.delete("/workers/bob", headers=SHOWN).status_code == 204


def test_a_named_network_is_accepted(config: Settings) -> None:
    with serving(config, worker_networks=("169.254.10.0/24",)) as own:
        own.post("/workers", {"worker_id": "bob", "url": "http://169.254.10.9"}, 201)
        own.post("/workers", {"worker_id": "eve", "url": "http://169.254.11.9"}, 400)
        assert own.http.delete("/workers/bob").status_code == 204


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1"])
def test_a_name_that_leads_elsewhere_later_is_refused_at_the_call(
    worker: ForeignWorker, config: Settings, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    away = {**SHOWN, "X-Forwarded-For": "203.0.113.9"}
    port = int(worker.url.rpartition(":")[2])

    async def look_up(url: str) -> list[str]:
        return [address]

    monkeypatch.setattr(hosting, "look_up", look_up)
    offer = {"provider": "anthropic", "model": "claude-opus-4-6"}
    body = {"worker_id": "alice", "url": f"http://worker.invalid:{port}", "capabilities": [offer]}
    with serving(config, worker_secret=SecretStr(SECRET), trusted_proxies=("127.0.0.1",)) as gateway:
        gateway.post("/workers", body, 201, headers=away)
        wait_for(lambda: seats(config))
        graph = {"root": stage("llm_complete", model="claude-opus-4-6", prompt="p")}
        job = gateway.http.post("/jobs", json={"graph": graph}).json()
        error = wait_for(lambda: gateway.get(f"/jobs/{job['job_id']}", 200).get("error"))
        assert f"leads to {address}" in error["details"]["reason"]
        assert worker.requests == []
        assert gateway.http.delete("/workers/alice", headers=away).status_code == 204
