"""The events of a job over HTTP: pieces, stages and end; from the beginning and after any piece."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.protocol.models import Advertisement
from gridq.seats import registry
from tests.builders import seq, stage
from tests.gateways import Benches, Gateway, benches, serving
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

TOKENS = {"root": stage("bench_tokens", n=5)}
SLOWLY = {"root": stage("bench_tokens", n=60, ms=50)}


@pytest.fixture(scope="module")
def place(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    with benches(server, tmp_path_factory.mktemp("home"), keep_alive=0.2) as started:
        yield started


@pytest.fixture
def gateway(place: Benches) -> Gateway:
    return place.gateway


def submit(gateway: Gateway, graph: Any, **more: Any) -> str:
    return gateway.post("/jobs", {"graph": graph, "input": {}, "stream": True, **more}, 202)["job"]


def pieces(events: list[dict[str, str]]) -> list[Any]:
    return [json.loads(event["data"])["piece"] for event in events if event.get("event") == "piece"]


def test_pieces_stages_and_the_end(gateway: Gateway) -> None:
    job = submit(gateway, {"root": seq(stage("bench_tokens", n=5), stage("bench_echo"))})
    events = list(gateway.events(f"/jobs/{job}/events"))
    assert events[0] == {"retry": "1000"}
    answer = gateway.get(f"/jobs/{job}?wait=30")["result"]["output"]
    assert "".join(pieces(events)) == answer
    assert len(pieces(events)) == 5
    named = [event for event in events if "event" in event]
    assert all(event["id"].startswith(f"{job}/") for event in named if event["event"] in ("piece", "end"))
    stages = [json.loads(event["data"]) for event in named if event["event"] == "stage"]
    last = {one["path"]: one for one in stages}
    assert {path: one["state"] for path, one in last.items()} == {
        "root.stages[0]": "done",
        "root.stages[1]": "done",
    }
    assert last["root.stages[0]"]["seat"] == "m.bench"
    assert json.loads([e for e in named if e["event"] == "progress"][-1]["data"]) == {"done": 2, "of": 2}
    end = json.loads(named[-1]["data"])
    assert named[-1]["event"] == "end"
    assert (end["job"], end["state"], end["status"], end["error"]) == (job, "done", "ok", None)


def test_events_resume_after_any_piece_at_any_gateway(place: Benches, gateway: Gateway) -> None:
    job = submit(gateway, TOKENS)
    whole = list(gateway.events(f"/jobs/{job}/events"))
    ids = [event["id"] for event in whole if event.get("event") == "piece"]
    with serving(place.config) as other:
        for number, id in enumerate(ids):
            again = list(other.events(f"/jobs/{job}/events", headers={"Last-Event-ID": id}))
            assert pieces(again) == pieces(whole)[number + 1 :]
            assert again[-1]["event"] == "end"
        entry = ids[1].rpartition("/")[2]
        for after in (ids[1], entry):
            assert pieces(list(other.events(f"/jobs/{job}/events?after={after}"))) == pieces(whole)[2:]


def test_resuming_after_the_end_is_204(gateway: Gateway) -> None:
    job = submit(gateway, TOKENS)
    *_, end = gateway.events(f"/jobs/{job}/events")
    reply = gateway.http.get(f"/jobs/{job}/events", headers={"Last-Event-ID": end["id"]})
    assert (reply.status_code, reply.content) == (204, b"")


def test_a_silent_stream_is_kept_alive(gateway: Gateway) -> None:
    job = submit(gateway, {"root": stage("bench_sleep", ms=60_000)})
    seen = []
    for event in gateway.events(f"/jobs/{job}/events"):
        seen.append(event)
        if "comment" in event:
            break
    assert seen[-1] == {"comment": "keep-alive"}
    assert [e["event"] for e in seen if "event" in e][:2] == ["stage", "progress"]
    gateway.ask("DELETE", f"/jobs/{job}", 200)


def test_a_silent_stream_says_which_model_its_seat_loads(place: Benches, gateway: Gateway) -> None:
    job = submit(gateway, {"root": stage("bench_sleep", ms=60_000)})
    wait_for(lambda: gateway.get(f"/jobs/{job}"), true=lambda now: now["status"] == "running")
    [running] = gateway.get(f"/jobs/{job}")["stages"]
    seat = next(each for each in gateway.get("/workers") if running["seat"] in (each["seat"], each["worker"]))
    loading = {"loading": {running["queue"]: {"model": "qwen3-8b", "share": 0.4}}}
    ad = Advertisement(
        seat=seat["seat"], machine="m", worker=running["seat"], incarnation="i", kind="bench", concurrency=1,
        queues=[running["queue"]], capability={}, details=loading,
    )  # fmt: skip
    registry.advertise(place.grid.scripts.client, place.grid.scripts.keys, ad, 600)
    try:
        comments = (e["comment"] for e in gateway.events(f"/jobs/{job}/events") if "comment" in e)
        wanted = f"loading qwen3-8b on {running['seat']}, 40 %"
        assert next(each for each in itertools.islice(comments, 30) if each != "keep-alive") == wanted
    finally:
        registry.withdraw(place.grid.scripts.client, place.grid.scripts.keys, seat["seat"])
        gateway.ask("DELETE", f"/jobs/{job}", 200)


@pytest.mark.parametrize("options", [{"stream": False}, {"stream": True}])
def test_the_end_of_a_failed_job_has_its_error(gateway: Gateway, options: dict[str, bool]) -> None:
    job = submit(gateway, {"root": stage("bench_sleep", ms=60_000)}, **options)
    found: list[dict[str, str]] = []
    reading = threading.Thread(target=lambda: found.extend(gateway.events(f"/jobs/{job}/events")))
    reading.start()
    wait_for(lambda: gateway.get(f"/jobs/{job}"), true=lambda now: now["status"] == "running")
    gateway.ask("DELETE", f"/jobs/{job}", 200)
    reading.join(30)
    end = json.loads(found[-1]["data"])
    assert (found[-1]["event"], end["state"], end["error"]["code"]) == ("end", "cancelled", "job.cancelled")


def test_a_job_submitted_without_a_stream(place: Benches, gateway: Gateway) -> None:
    job = place.grid.client.submit({"root": stage("bench_sleep", ms=300)}, {})
    events = list(gateway.events(f"/jobs/{job}/events"))
    assert events[-1]["event"] == "end"
    assert "id" not in events[-1]
    assert gateway.get(f"/jobs/{job}")["state"] == "done"


@pytest.mark.parametrize("after", ["x", "1-2-3", "../1-0", "other-job/1-0", "-1", "9" * 30, "1-", "%00"])
def test_an_invalid_event_id(gateway: Gateway, after: str) -> None:
    job = submit(gateway, TOKENS)
    error = gateway.get(f"/jobs/{job}/events?after={after}", 400)["error"]
    assert (error["code"], error["path"]) == ("request.invalid", "after")


def test_resuming_before_trimmed_pieces_fails(place: Benches, gateway: Gateway) -> None:
    job = submit(gateway, TOKENS)
    ids = [e["id"] for e in gateway.events(f"/jobs/{job}/events") if e.get("event") == "piece"]
    stream = place.grid.scripts.keys("stream", job)
    place.grid.scripts.client.xtrim(stream, maxlen=2, approximate=False)
    events = list(gateway.events(f"/jobs/{job}/events", headers={"Last-Event-ID": ids[0]}))
    assert events[-1]["event"] == "error"
    assert json.loads(events[-1]["data"])["error"]["code"] == "stream.trimmed"


def test_an_outage_of_the_server_loses_no_piece(tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path / "data", appendonly=True, fsync="always") as own,
        benches(own, tmp_path, keep_alive=0.2) as place,
    ):
        job = submit(place.gateway, SLOWLY)
        found: list[dict[str, str]] = []
        restarted = False
        for event in place.gateway.events(f"/jobs/{job}/events"):
            found.append(event)
            if len(pieces(found)) >= 5 and not restarted:
                own.kill()
                own.start()
                restarted = True
        assert restarted
        assert found[-1]["event"] == "end", found[-1]
        end = json.loads(found[-1]["data"])
        assert end["state"] == "done"
        assert "".join(pieces(found)) == place.gateway.get(f"/jobs/{job}")["result"]["output"]
