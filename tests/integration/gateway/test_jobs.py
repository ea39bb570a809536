"""Jobs over HTTP, on a grid in this process."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.gateway.http.request_body import MAX_VALUES
from gridq.limits import api_keys
from tests.builders import seq, stage
from tests.gateways import Benches, Gateway, benches
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

ECHO = {"root": stage("bench_echo")}
SLOW = {"root": stage("bench_sleep", ms=60_000)}


@pytest.fixture(scope="module")
def place(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    with benches(server, tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture
def gateway(place: Benches) -> Gateway:
    return place.gateway


def submit(gateway: Gateway, graph: Any = ECHO, input: Any = 1, **more: Any) -> str:
    return gateway.post("/jobs", {"graph": graph, "input": input, **more}, 202)["job_id"]


def test_a_job_is_submitted_awaited_and_answered(gateway: Gateway) -> None:
    reply = gateway.http.post("/jobs", json={"graph": ECHO, "input": {"a": "ä"}})
    assert reply.status_code == 202
    accepted = reply.json()
    job = accepted["job_id"]
    assert (accepted["job"], accepted["state"], accepted["status"]) == (job, "running", "queued")
    assert reply.headers["location"] == accepted["url"] == f"/jobs/{job}"
    assert reply.headers["x-gridq-job"] == job
    done = gateway.get(f"/jobs/{job}?wait=30")
    assert (done["state"], done["status"], done["result"]["output"]) == ("done", "ok", {"a": "ä"})
    assert (done["spent_cents"], done["error"], done["waits_for"]) == (0, None, "")
    assert [row["stage"] for row in done["rows"]] == ["bench_echo"]
    assert done["dispatched_to"] == "m.bench"
    assert done["result"]["completed_at"].endswith("Z")


def test_a_long_answer_is_sent_as_stored(gateway: Gateway) -> None:
    job = submit(gateway, ECHO, "x" * 5000)
    assert gateway.get(f"/jobs/{job}?wait=30")["result"]["output"] == "x" * 5000


def test_a_graph_may_be_text(gateway: Gateway) -> None:
    job = submit(gateway, json.dumps(ECHO), [1])
    assert gateway.get(f"/jobs/{job}?wait=30")["result"]["output"] == [1]


def test_a_jobs_cost_is_rounded_up_to_cents(gateway: Gateway) -> None:
    job = submit(gateway, {"root": stage("bench_spend", micro_dollars=12_001)}, {})
    done = gateway.get(f"/jobs/{job}?wait=30")
    assert (done["spent_cents"], done["micro_dollars"], done["result"]["spent_cents"]) == (2, 12_001, 2)


def test_a_job_that_fails_says_why_and_where(gateway: Gateway) -> None:
    job = submit(gateway, {"root": seq(stage("bench_echo"), stage("bench_fail", message="no"))}, {})
    done = gateway.get(f"/jobs/{job}?wait=30")
    assert (done["state"], done["status"], done["result"]["output"]) == ("failed", "failed", None)
    assert done["error"]["code"] == "stage.failed"
    assert done["error"]["details"]["path"] == "root.stages[1]"
    assert done["result"]["error"].startswith("stage.failed: ")


def test_a_job_over_its_budget_ends_with_the_stage_that_went_over(gateway: Gateway) -> None:
    graph = {"root": seq(stage("bench_spend", micro_dollars=30_000), stage("bench_echo"))}
    job = submit(gateway, graph, {}, budget_cents=2)
    done = gateway.get(f"/jobs/{job}?wait=30")
    assert (done["state"], done["error"]["code"]) == ("failed", "quota.job_budget")


def test_a_wait_ends_in_time_and_says_what_the_job_waits_for(gateway: Gateway) -> None:
    job = submit(gateway, SLOW, {})
    waiting = gateway.get(f"/jobs/{job}?wait=0.2")
    assert (waiting["state"], waiting["result"]) == ("running", None)
    wait_for(lambda: gateway.get(f"/jobs/{job}"), true=lambda now: now["status"] == "running")
    assert "bench_sleep" in gateway.get(f"/jobs/{job}")["waits_for"]
    gone = gateway.ask("DELETE", f"/jobs/{job}", 200)
    assert (gone["state"], gone["cancelled"]) == ("cancelled", True)
    again = gateway.ask("DELETE", f"/jobs/{job}", 200)
    assert (again["state"], again["cancelled"]) == ("cancelled", False)
    assert gateway.get(f"/jobs/{job}")["status"] == "failed"


def test_an_unambiguous_id_prefix_is_enough(gateway: Gateway) -> None:
    name = secrets.token_hex(8)
    one = submit(gateway, job=f"{name}-1")
    assert gateway.get(f"/jobs/{name}")["job"] == one
    submit(gateway, job=f"{name}-2")
    error = gateway.get(f"/jobs/{name}", 400)["error"]
    assert (error["code"], error["expected"]) == ("job.ambiguous", f"one of {name}-1, {name}-2")


def test_the_same_key_and_body_are_one_job(gateway: Gateway) -> None:
    body = {"graph": ECHO, "input": secrets.token_hex(4)}
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    first = gateway.post("/jobs", body, 202, headers=headers)
    gateway.get(f"/jobs/{first['job']}?wait=30")
    again = gateway.post("/jobs", body, 202, headers=headers)
    assert (again["job"], again["state"], again["status"]) == (first["job"], "done", "ok")
    error = gateway.post("/jobs", {**body, "input": 0}, 409, headers=headers)["error"]
    assert (error["code"], error["job"]) == ("job.idempotency_conflict", first["job"])
    both = {**body, "idempotency_key": "another"}
    assert gateway.post("/jobs", both, 400, headers=headers)["error"]["path"] == "idempotency_key"


def test_noether_names_of_options_mean_the_same(gateway: Gateway) -> None:
    spec = {"graph": SLOW, "input": {}, "queue_timeout_secs": 30, "deadline_secs": 1, "budget_cents": 9}
    job = gateway.post("/jobs", spec, 202)["job_id"]
    done = gateway.get(f"/jobs/{job}?wait=30")
    assert (done["state"], done["status"]) == ("expired", "abandoned")
    both = gateway.post("/jobs", {**spec, "deadline": 5}, 400)["error"]
    assert "differ" in both["reason"]


def test_headers_set_options_and_the_body_takes_precedence(gateway: Gateway) -> None:
    headers = {"x-gridq-priority": "batch", "x-gridq-name": "from-header"}
    job = gateway.post("/jobs", {"graph": ECHO, "name": "mine"}, 202, headers=headers)["job"]
    done = gateway.get(f"/jobs/{job}?wait=30")
    assert (done["name"], done["priority"]) == ("mine", "batch")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "graph"),
        ({"graph": 1}, "graph"),
        ({"graph": ECHO, "colour": 1}, "colour"),
        ({"graph": ECHO, "key": "gq_x"}, "key"),
        ({"graph": ECHO, "deadline": 0}, "deadline"),
        ({"graph": ECHO, "deadline": "30"}, "deadline"),
        ({"graph": ECHO, "budget_cents": -1}, "budget_cents"),
        ({"graph": ECHO, "stream": "yes"}, "stream"),
        ({"graph": ECHO, "job": "a b"}, "job"),
        ({"graph": ECHO, "job": ".."}, "job"),
        ({"graph": {"root": {"op": "Nothing"}}}, "root"),
        ({"graph": {"root": stage("no_such_stage")}}, "root"),
        ([], "body"),
    ],
)
def test_an_invalid_field_is_named(gateway: Gateway, body: Any, path: str) -> None:
    error = gateway.post("/jobs", body, 400)["error"]
    assert str(error["path"]).startswith(path), error
    assert error["code"]
    assert error["message"]
    assert error["request_id"]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"graph": NaN}', b'\xff{"graph": {}}', b"[" * 100_000, b"null"])
def test_a_body_that_is_not_json(gateway: Gateway, raw: bytes) -> None:
    reply = gateway.http.post("/jobs", content=raw)
    assert reply.status_code == 400
    assert reply.json()["error"]["path"] == "body"


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"graph":{},"priority":"batch","priority":"interactive"}', "priority"),
        (b'{"graph":{"root":{"op":"Const","value":1,"value":2}}}', "graph.root.value"),
        (b'{"graph":{},"input":{"a":[{"b":1,"b":2}]}}', "input.a[0].b"),
    ],
)
def test_a_key_that_stands_twice_is_refused(gateway: Gateway, raw: bytes, path: str) -> None:
    reply = gateway.http.post("/jobs", content=raw)
    assert reply.status_code == 400
    assert (reply.json()["error"]["code"], reply.json()["error"]["path"]) == ("graph.not_json", path)


def test_a_body_of_too_many_values(gateway: Gateway) -> None:
    raw = b'{"graph":{},"input":[' + b"[]," * MAX_VALUES + b"[]]}"
    reply = gateway.http.post("/jobs", content=raw)
    assert reply.status_code == 413
    assert (reply.json()["error"]["code"], reply.json()["error"]["path"]) == ("input.too_large", "body")


def test_a_stage_gets_its_input_unchanged(gateway: Gateway) -> None:
    text = '[18446744073709551616,-9223372036854775809,1.50,-0.0,"\\ud800","\\u00fc,[",{"a":{"":[]}}]'
    raw = f'{{"graph":{json.dumps(ECHO)},"input":{text}}}'
    reply = gateway.http.post("/jobs", content=raw.encode())
    assert reply.status_code == 202, reply.text
    answer = gateway.get(f"/jobs/{reply.json()['job_id']}?wait=30")["result"]["output"]
    assert repr(answer) == repr(json.loads(text))


def test_a_deep_graph_is_accepted(gateway: Gateway) -> None:
    graph: Any = stage("bench_echo")
    for _ in range(300):
        graph = seq(graph)
    job = submit(gateway, {"root": graph}, 7)
    assert gateway.get(f"/jobs/{job}?wait=30")["result"]["output"] == 7


def test_an_unserved_graph_is_refused(gateway: Gateway) -> None:
    error = gateway.post("/jobs", {"graph": {"root": stage("bench_echo", slug="rare")}}, 503)["error"]
    assert error["code"] == "seat.none_live"
    job = submit(gateway, {"root": stage("bench_echo", slug="rare")}, wait_for_seat=True)
    assert "no live seat serves it" in gateway.get(f"/jobs/{job}")["waits_for"]
    gateway.ask("DELETE", f"/jobs/{job}", 200)


@pytest.mark.parametrize("id", ["nothing-here", "abc", "x" * 500, "a%20b", "%00%00%00%00", "..%2e.", "ü"])
@pytest.mark.parametrize("tail", ["", "/events"])
def test_an_unknown_job(gateway: Gateway, id: str, tail: str) -> None:
    assert gateway.get(f"/jobs/{id}{tail}", 404)["error"]["code"] == "job.not_found"
    if not tail:
        gateway.ask("DELETE", f"/jobs/{id}", 404)


def test_the_list_has_pages_and_filters(gateway: Gateway) -> None:
    agent = f"a{secrets.token_hex(4)}"
    ids = [submit(gateway, agent=agent) for _ in range(3)]
    for job in ids:
        gateway.get(f"/jobs/{job}?wait=30")
    first = gateway.get(f"/jobs?agent={agent}&limit=2")
    assert [line["job"] for line in first["jobs"]] == [ids[2], ids[1]]
    rest = gateway.get(f"/jobs?agent={agent}&limit=2&before={first['next']}")
    assert ([line["job"] for line in rest["jobs"]], rest["next"]) == ([ids[0]], None)
    assert gateway.get(f"/jobs?agent={agent}&state=failed")["jobs"] == []
    assert [line["status"] for line in gateway.get(f"/jobs?agent={agent}&state=done")["jobs"]] == ["ok"] * 3


@pytest.mark.parametrize(
    "query", ["state=ended", "limit=0", "limit=x", "limit=501", "before=1", "before=%00"]
)
def test_an_invalid_query_is_refused(gateway: Gateway, query: str) -> None:
    error = gateway.get(f"/jobs?{query}", 400)["error"]
    assert query.partition("=")[0] in error["path"]


@pytest.mark.parametrize("wait", ["-1", "x", "nan", "inf"])
def test_an_invalid_wait_is_refused(gateway: Gateway, wait: str) -> None:
    job = submit(gateway)
    assert "wait" in gateway.get(f"/jobs/{job}?wait={wait}", 400)["error"]["path"]


def test_an_agent_sees_and_cancels_only_its_own_jobs(place: Benches, gateway: Gateway) -> None:
    client, keys = place.grid.scripts.client, place.grid.scripts.keys
    made = {
        "ann": api_keys.create(client, keys, "ann"),
        "bob": api_keys.create(client, keys, "bob"),
        "watcher": api_keys.create(client, keys, "watcher", scopes=("read-all",)),
        "operator": api_keys.create(client, keys, "operator", scopes=("operate",)),
        "sender": api_keys.create(client, keys, "sender", scopes=("submit",)),
    }
    as_ = {name: {"headers": {"X-API-Key": text}} for name, (_, text) in made.items()}
    try:
        wait_for(lambda: gateway.http.get("/jobs").status_code, true=lambda status: status == 401)
        job = gateway.post("/jobs", {"graph": SLOW, "input": {}, "agent": "bob"}, 202, **as_["ann"])["job"]
        assert gateway.get(f"/jobs/{job}", **as_["ann"])["agent"] == "ann"
        for path in (f"/jobs/{job}", f"/jobs/{job[:8]}", f"/jobs/{job}/events"):
            assert gateway.get(path, 404, **as_["bob"])["error"]["code"] == "job.not_found"
        gateway.ask("DELETE", f"/jobs/{job}", 404, **as_["bob"])
        assert gateway.get(f"/jobs/{job}", **as_["watcher"])["job"] == job
        assert gateway.ask("DELETE", f"/jobs/{job}", 403, **as_["watcher"])["error"]["code"] == "auth.scope"
        assert gateway.get(f"/jobs/{job}", 403, **as_["sender"])["error"]["code"] == "auth.scope"
        assert {line["agent"] for line in gateway.get("/jobs", **as_["ann"])["jobs"]} == {"ann"}
        assert gateway.get("/jobs?agent=ann", 403, **as_["bob"])["error"]["code"] == "auth.scope"
        assert [line["job"] for line in gateway.get("/jobs?agent=ann", **as_["watcher"])["jobs"]] == [job]
        gateway.post("/jobs", {"graph": ECHO}, 403, **as_["watcher"])
        for path in ("/workers", "/queues", "/models"):
            gateway.get(path, 401)
            gateway.get(path, **as_["sender"])
        gateway.post("/workers/bench/drain", None, 403, **as_["ann"])
        assert gateway.ask("DELETE", f"/jobs/{job}", 200, **as_["operator"])["cancelled"]
    finally:
        client.unlink(keys("api_keys"))
        wait_for(lambda: gateway.http.get("/jobs").status_code, true=lambda status: status == 200)
