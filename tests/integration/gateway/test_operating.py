"""Operations over HTTP: seats, queues, quarantine, health."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from gridq.protocol.models import Advertisement
from gridq.seats import registry
from tests.builders import stage
from tests.fakes.commanded_models import CommandedModels
from tests.gateways import Benches, Gateway, benches, serving
from tests.refusals import check_refusal
from tests.waiting import wait_for
from workers.process.model_commands import ModelCommands
from workers.supervisor.embedded_server import EmbeddedServer


@pytest.fixture(scope="module")
def place(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    with benches(server, tmp_path_factory.mktemp("home"), concurrency=2, admission_wait=0.2) as started:
        ad = Advertisement(
            seat="m.bench", machine="m", worker="bench@m", incarnation="i", kind="bench", concurrency=2,
            queues=["bench:any"], capability={"models": [{"name": "any"}], "host": "here"},
        )  # fmt: skip
        registry.advertise(started.grid.scripts.client, started.grid.scripts.keys, ad, 600)
        yield started


@pytest.fixture
def gateway(place: Benches) -> Gateway:
    return place.gateway


def test_seats_have_the_fields_of_noether_clients(gateway: Gateway) -> None:
    found = {seat["seat"]: seat for seat in gateway.get("/workers")}
    assert set(found) == {"m.bench", "m.local"}
    bench = found["m.bench"]
    assert (bench["concurrency"], bench["free_slots"], bench["queues"]) == (2, 2, ["bench:any"])
    assert (bench["worker_id"], bench["in_flight_jobs"], bench["healthy"]) == ("m.bench", 0, True)
    assert datetime.fromisoformat(bench["last_seen"]).tzinfo is not None
    assert bench["capabilities"] == [
        {
            "provider": "here",
            "model": "any",
            "auth_via": "api_key",
            "budget_monthly_cents": None,
            "budget_remaining_cents": None,
            "rate_limit_rpm": None,
        }
    ]
    assert found["m.local"]["healthy"] is False  # its worker says nothing of itself


@pytest.mark.parametrize(
    ("query", "seats"),
    [
        ("queue=bench:any", ["m.bench"]),
        ("kind=bench", ["m.bench"]),
        ("state=draining", []),
        ("queue=llm:any", []),
        ("routers=true", ["m.bench", "m.local", "m.router"]),
        ("routers=true&kind=router", ["m.router"]),
    ],
)
def test_seats_can_be_filtered(gateway: Gateway, query: str, seats: list[str]) -> None:
    assert [seat["seat"] for seat in gateway.get(f"/workers?{query}")] == seats


def test_a_seat_is_found_by_full_or_short_name(gateway: Gateway) -> None:
    for name in ("m.bench", "bench"):
        assert gateway.get(f"/workers/{name}")["seat"] == "m.bench"
    error = gateway.get("/workers/banch", 404)["error"]
    assert (error["code"], error["fix"]) == ("seat.not_found", "use the full name: m.bench")
    gateway.post("/workers/nobody/drain", None, 404)
    gateway.post("/workers/nobody/undrain", None, 404)


def test_a_seat_is_drained_and_takes_work_again(gateway: Gateway) -> None:
    reply = gateway.post("/workers/bench/drain?wait=10")
    assert reply == {"seat": "m.bench", "drained": True, "drain_acknowledged": True, "busy": 0}
    assert gateway.post("/workers/bench/drain")["drained"]
    try:
        assert gateway.get("/workers/m.bench")["state"] == "draining"
        job = gateway.post(
            "/jobs", {"graph": {"root": stage("bench_echo")}, "input": 1, "wait_for_seat": True}, 202
        )["job"]
        gateway.post("/jobs", {"graph": {"root": stage("bench_echo")}}, 503)
        wait_for(lambda: _queue(gateway), true=lambda queue: queue["pending"]["interactive"] == 1)
        assert _queue(gateway)["oldest"]["interactive"] > 0
    finally:
        reply = gateway.post("/workers/bench/undrain?wait=10")
    assert reply == {"seat": "m.bench", "drained": False, "drain_acknowledged": True, "busy": reply["busy"]}
    assert gateway.get(f"/jobs/{job}?wait=30")["state"] == "done"


def test_models_of_a_seat_are_loaded_and_unloaded(place: Benches, gateway: Gateway) -> None:
    profile = CommandedModels()
    commands = ModelCommands(place.grid.scripts.client, place.grid.scripts.keys, "m.bench", profile)
    commands.start()
    try:
        reply = gateway.post("/workers/bench/load?model=qwen3%3A8b&wait=10")
        assert reply == {"seat": "m.bench", "model": "qwen3:8b", "state": "done"}
        assert gateway.post("/workers/m.bench/unload?model=qwen3%3A8b&wait=10")["state"] == "done"
        assert profile.log == ["+qwen3:8b", "-qwen3:8b"]
        reply = gateway.post("/workers/bench/load?model=broken&wait=10", None, 502)
        assert (reply["error"]["code"], reply["error"]["fix"]) == ("seat.unavailable", "ask for another")
        assert gateway.post("/workers/bench/load?model=slow&wait=2")["state"] == "running"
        profile.go.set()
    finally:
        commands.stop()
    assert gateway.post("/workers/bench/load?model=slow")["state"] == "waiting"
    assert gateway.post("/workers/bench/load", None, 400)["error"]["path"] == "query.model"
    assert gateway.post("/workers/nobody/load?model=slow", None, 404)["error"]["code"] == "seat.not_found"


def _queue(gateway: Gateway) -> Any:
    return gateway.get("/queues?queue=bench:any")[0]


def test_queues_and_capabilities(gateway: Gateway) -> None:
    queues = {queue["queue"]: queue for queue in gateway.get("/queues")}
    assert {"gridq:router", "gridq:pure", "gridq:local", "bench:any"} <= set(queues)
    assert (queues["bench:any"]["concurrency"], queues["bench:any"]["seats"]) == (2, ["m.bench"])
    [offer] = gateway.get("/models")
    assert (offer["queue"], offer["seats"], offer["concurrency"]) == ("bench:any", ["m.bench"], 2)


def test_a_quarantined_stage_is_listed_released_and_dropped(gateway: Gateway) -> None:
    assert gateway.get("/quarantine") == []
    job = gateway.post("/jobs", {"graph": {"root": stage("bench_die")}, "input": 1}, 202)["job"]
    [held] = wait_for(lambda: gateway.get("/quarantine"))
    assert (held["job"], held["path"], held["deaths"]) == (job, "root", 2)
    reply = gateway.post("/quarantine/release", {"job": job[:8], "stage": "root"})
    assert reply == {"job": job, "stage": "root", "outcome": "released", "before": False}
    wait_for(lambda: gateway.get("/quarantine"))
    reply = gateway.post("/quarantine/drop", {"job": job, "stage": 0})
    assert (reply["outcome"], reply["stage"], reply["before"]) == ("dropped", "0", False)
    error = gateway.get(f"/jobs/{job}?wait=30")["error"]
    assert (error["code"], error["details"]["dropped_by"]) == ("stage.quarantined", "default")
    assert gateway.post("/quarantine/drop", {"job": job, "stage": 0})["before"]
    assert gateway.post("/quarantine/release", {"job": job, "stage": 0}, 409)["error"]["code"]
    gateway.post("/quarantine/release", {"job": "nothing-here", "stage": 0}, 404)


@pytest.mark.parametrize(
    "body", [None, {}, {"job": "x"}, {"job": "x", "stage": True}, {"job": 1, "stage": 0}]
)
def test_an_invalid_quarantine_request_is_refused(gateway: Gateway, body: Any) -> None:
    assert gateway.post("/quarantine/drop", body, 400)["error"]["code"] == "request.invalid"


def test_health_and_readiness(gateway: Gateway) -> None:
    health = gateway.get("/health")
    assert (health["ok"], health["status"]) == (True, "ok")
    assert health["uptime"] >= 0
    assert gateway.get("/ready") == {"ready": True, "reason": "", "fix": "", "routers": 1}


def test_readiness_names_what_is_missing(place: Benches, gateway: Gateway) -> None:
    client, keys = place.grid.scripts.client, place.grid.scripts.keys

    def read_reason(code: str) -> tuple[str, str]:
        reply = gateway.http.get("/ready")
        error = check_refusal(reply, 503, code)
        assert (error["ready"], error["position"], error["starts_in"]) == (False, None, None)
        return error["reason"], error["bottleneck"]

    client.rename(keys("serving", "gridq:pure"), keys("serving", "kept"))
    assert read_reason("seat.none_live") == ("no router is live", "no router is live")
    client.rename(keys("serving", "kept"), keys("serving", "gridq:pure"))
    client.set(keys("memory_full"), "1 2", px=60_000)
    assert read_reason("grid.full") == ("the Redis server is almost out of memory", "the server's memory")
    client.delete(keys("memory_full"))
    data = client.get(keys("schema"))
    client.set(keys("schema"), 9)
    assert read_reason("broker.schema") == (
        "the grid's data belongs to another version of gridq",
        "the version of this gateway",
    )
    client.set(keys("schema"), data) if data else client.delete(keys("schema"))
    reply = gateway.http.get("/ready")
    assert (reply.status_code, "retry-after" in reply.headers) == (200, False)


def test_without_its_server_the_gateway_is_alive_and_not_ready(place: Benches, tmp_path: Any) -> None:
    with EmbeddedServer(tmp_path / "data") as own:
        config = place.config.model_copy(update={"broker_url": type(place.config.broker_url)(own.url)})
        with serving(config) as gateway:
            own.kill()
            assert gateway.get("/health")["ok"]
            unready = check_refusal(gateway.http.get("/ready"), 503, "broker.unreachable")
            assert (unready["ready"], unready["routers"]) == (False, None)
            assert unready["reason"] == "the Redis server does not answer"
            away = check_refusal(gateway.http.get("/jobs"), 503, "broker.unreachable")
            for error in (unready, away):
                assert error["bottleneck"] == "the grid's server"
                assert own.url.rpartition(":")[2] not in json.dumps(error)
            own.start()
