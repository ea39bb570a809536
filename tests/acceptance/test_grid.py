"""What an agent's author and an operator rely on, on a grid of real processes."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

import gridq
from gridq import errors
from gridq.client import Client
from gridq.protocol.models import Json
from gridq.protocol.states import JobState
from gridq.views.audit import find_keys_without_ttl
from tests.acceptance.grids import WholeGrid
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("whole_grid")


def stage(name: str, **config: Json) -> dict[str, Any]:
    node: dict[str, Any] = {"op": "Stage", "id": name}
    return {**node, "config": config} if config else node


def graph(root: dict[str, Any]) -> dict[str, Any]:
    return {"description": "a test", "version": "0.1.0", "root": root}


ECHO = graph(stage("bench_echo"))


def test_delay_get_returns_the_answer() -> None:
    assert gridq.run_graph.delay(ECHO, {"a": [1, "ü", None]}).get(timeout=20) == {"a": [1, "ü", None]}


def test_a_graph_crosses_queues_and_workers(whole_grid: WholeGrid) -> None:
    both = graph({"op": "Sequential", "stages": [
        {"op": "Parallel", "branches": {"where": stage("pid"), "what": stage("bench_echo")}},
        stage("text_template", template="{{what}} there"),
    ]})  # fmt: skip
    job = gridq.run_graph.delay(both, {"what": "hello"})
    assert job.get(timeout=20) == "hello there"
    rows = {row.path: row for row in whole_grid.client.rows(job.id)}
    assert rows["root.stages[0].branches.where"].queue == "gridq:local.own_stages"
    assert rows["root.stages[0].branches.where"].worker.startswith("local@")
    assert rows["root.stages[0].branches.what"].worker.startswith("bench@")
    assert rows["root.stages[1]"].queue == "gridq:pure"


def test_a_failure_reaches_get_with_its_place_and_cause() -> None:
    with pytest.raises(errors.StageError) as caught:
        gridq.run_graph.delay(
            graph({"op": "Sequential", "stages": [stage("bench_echo"), stage("boom")]}), 1
        ).get(timeout=20)
    assert caught.value.path == "root.stages[1]"
    assert caught.value.worker is not None
    assert caught.value.worker.startswith("local@")
    assert "it went boom" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("{", errors.InvalidJson),
        ({"root": {"op": "Stagge", "id": "x"}}, errors.UnknownOperator),
        ({"root": {"op": "Stage"}}, errors.MissingField),
        ({"root": stage("bench_ecko")}, errors.UnknownStage),
        ({"root": stage("llm_complete")}, errors.UnknownCapability),
        ({"root": stage("bench_echo", slug="nobody")}, errors.NoLiveSeat),
    ],
)
def test_a_wrong_graph_fails_the_task_and_the_client_alike(
    whole_grid: WholeGrid, wrong: Any, error: type[errors.GridError]
) -> None:
    with pytest.raises(error):
        gridq.run_graph.delay(wrong, 1).get(timeout=20)
    with pytest.raises(error):
        whole_grid.client.submit(wrong, 1)


def test_a_cycle_by_reference_is_refused_before_anything_is_sent() -> None:
    node: dict[str, Any] = {"op": "Sequential", "stages": []}
    node["stages"].append(node)
    with pytest.raises(errors.GraphCycle):
        gridq.run_graph.delay({"root": node}, 1)


def test_an_input_over_the_limit_is_refused_before_anything_is_sent(whole_grid: WholeGrid) -> None:
    huge = "x" * (whole_grid.config.max_value + 1)
    for send in (gridq.run_graph.delay, whole_grid.client.submit):
        with pytest.raises(errors.InputTooLarge):
            send(ECHO, huge)


def test_long_values_pass_whole(whole_grid: WholeGrid) -> None:
    text = "ü" * 1_000_000
    chain = graph(
        {"op": "Sequential", "stages": [stage("bench_echo"), stage("pick", path="$"), stage("bench_echo")]}
    )
    assert gridq.run_graph.delay(chain, text).get(timeout=30) == text
    assert whole_grid.client.run(chain, text, timeout=30) == text


def test_messages_contain_no_prompt(whole_grid: WholeGrid) -> None:
    """With no router to take it, the message can be looked at: it holds the job's id only."""
    router = whole_grid.home.children["router0"]
    router.send_signal(signal.SIGSTOP)
    try:
        job = gridq.run_graph.delay(ECHO, "a secret prompt")
        client = whole_grid.client.redis
        messages = [
            text
            for _ in range(50)
            for text in client.lrange(whole_grid.config.prefix + "gridq:router", 0, -1)
        ]
        assert all(b"secret" not in text for text in messages)
    finally:
        router.send_signal(signal.SIGCONT)
    assert job.get(timeout=20) == "a secret prompt"


def test_prompts_are_dropped_once_answered(whole_grid: WholeGrid) -> None:
    graph_with_secret = graph(stage("bench_echo", note="kept for the stage only"))
    job = whole_grid.client.submit(graph_with_secret, {"text": "a secret prompt"})
    whole_grid.client.result(job, timeout=20)
    left = list(whole_grid.client.redis.scan_iter(f"{whole_grid.config.prefix}*{job}*"))
    assert {key.split(b":")[1] for key in left} <= {b".summary", b".result", b".rows"}


def test_the_same_id_is_the_same_job(whole_grid: WholeGrid) -> None:
    first = gridq.run_graph.apply_async((ECHO, 1), task_id="same-id-1")
    again = gridq.run_graph.apply_async((ECHO, 1), task_id="same-id-1")
    assert first.get(timeout=20) == again.get(timeout=20) == 1
    assert len(whole_grid.client.rows("same-id-1")) == 1


def test_a_stream_gives_the_pieces_as_they_are_made(whole_grid: WholeGrid) -> None:
    job = whole_grid.client.submit(graph(stage("bench_tokens", n=5, ms=30)), stream=True)
    pieces = [piece.value for piece in whole_grid.client.stream(job, timeout=10)]
    assert "".join(pieces) == whole_grid.client.result(job)
    assert len(pieces) == 5


def test_cancel_stops_a_running_stage_and_is_quiet_when_repeated(whole_grid: WholeGrid) -> None:
    client = whole_grid.client
    job = client.submit(graph(stage("bench_sleep", ms=60_000)))
    wait_for(lambda: client.redis.hlen(client.keys("slots", _bench_seat(client))) == 1)
    assert client.cancel(job) is True
    assert client.cancel(job) is False
    assert client.status(job) is JobState.CANCELLED
    with pytest.raises(errors.JobCancelled):
        client.result(job, timeout=5)
    with pytest.raises(errors.JobNotFound):
        client.cancel("no-such-job")
    assert client.run(ECHO, 1, timeout=20) == 1


def test_celerys_revoke_cancels_the_job(whole_grid: WholeGrid) -> None:
    job = gridq.run_graph.delay(graph(stage("bench_sleep", ms=60_000)))
    wait_for(lambda: whole_grid.client.status(job.id) is JobState.RUNNING)
    job.revoke()
    with pytest.raises(errors.JobCancelled, match="revoked"):
        job.get(timeout=20)
    assert whole_grid.client.status(job.id) is JobState.CANCELLED
    assert job.status == "FAILURE"
    done = gridq.run_graph.delay(ECHO, 1)
    assert done.get(timeout=20) == 1
    done.revoke(terminate=True)
    assert gridq.run_graph.delay(ECHO, 2).get(timeout=20) == 2
    assert done.status == "SUCCESS"


def test_a_deadline_ends_the_job(whole_grid: WholeGrid) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        gridq.run_graph.delay(graph(stage("bench_sleep", ms=60_000)), deadline=0.5).get(timeout=20)


def test_waiting_for_a_seat_is_the_submitters_choice(whole_grid: WholeGrid) -> None:
    nobody = graph(stage("bench_echo", slug="nobody"))
    with pytest.raises(errors.NoLiveSeat, match="bench:any"):
        whole_grid.client.submit(nobody, 1)
    job = whole_grid.client.submit(nobody, 1, wait_for_seat=True)
    with pytest.raises(errors.WaitTimeout):
        whole_grid.client.result(job, timeout=0.3)
    assert whole_grid.client.cancel(job)


def test_a_worker_killed_in_the_midst_costs_nothing_but_time(whole_grid: WholeGrid) -> None:
    client = whole_grid.client
    jobs = [gridq.run_graph.delay(graph(stage("bench_sleep", ms=1500)), number) for number in range(4)]
    wait_for(lambda: client.redis.hlen(client.keys("slots", _bench_seat(client))) == 4)
    child = whole_grid.home.children["bench"]
    child.kill()
    child.wait()
    whole_grid.home.spawn("bench")
    assert [job.get(timeout=30) for job in jobs] == [{"items": n, "ms": 1500} for n in range(4)]
    assert all(row.attempt == 2 for job in jobs for row in client.rows(job.id))


def test_a_stopped_worker_finishes_what_it_can_and_hands_back_the_rest(whole_grid: WholeGrid) -> None:
    client = whole_grid.client
    short = gridq.run_graph.delay(graph(stage("bench_sleep", ms=800)), "short")
    long = gridq.run_graph.delay(graph(stage("bench_sleep", ms=6000)), "long")
    wait_for(lambda: client.redis.hlen(client.keys("slots", _bench_seat(client))) == 2)
    child = whole_grid.home.children["bench"]
    began = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait(15) == 0
    assert time.monotonic() - began < 6
    assert short.get(timeout=5) == {"items": "short", "ms": 800}
    assert client.status(long.id) is JobState.RUNNING
    assert not [ad for ad in client.workers() if ad.kind == "bench"]
    whole_grid.home.spawn("bench")
    assert long.get(timeout=30) == {"items": "long", "ms": 6000}
    assert [row.attempt for row in client.rows(short.id)] == [1]


def test_a_router_killed_before_admission_loses_nothing(whole_grid: WholeGrid) -> None:
    router = whole_grid.home.children["router0"]
    router.send_signal(signal.SIGSTOP)
    jobs = [gridq.run_graph.delay(ECHO, number) for number in range(20)]
    router.kill()
    router.wait()
    whole_grid.client.redis.delete(whole_grid.config.prefix + "gridq:router")  # and their messages with it
    whole_grid.home.spawn("router0")
    assert [job.get(timeout=30) for job in jobs] == list(range(20))


def test_a_second_worker_of_a_seat_is_refused(whole_grid: WholeGrid) -> None:
    first = whole_grid.home.children["bench"]
    twin = whole_grid.home.spawn("bench")
    whole_grid.home.children["bench"] = first
    assert twin.wait(20) == 2
    assert first.poll() is None
    log = (whole_grid.home.folder / "bench.log").read_text()
    assert "seat.in_use" in log.splitlines()[-1]
    assert whole_grid.client.run(ECHO, 1, timeout=20) == 1


def test_seats_register_again_at_an_emptied_server(whole_grid: WholeGrid) -> None:
    client = whole_grid.client
    names = ("seats", "concurrency", "serving:*", "idle:*", "seat:*", "wake_ups")
    known = [key for name in names for key in client.redis.scan_iter(client.keys(name))]
    client.redis.delete(*known)  # at once: no seat comes back in between and loses half of itself
    wait_for(lambda: client.redis.zcard(client.keys("seats")) == 3)
    assert gridq.run_graph.delay(ECHO, 1).get(timeout=20) == 1


def test_workers_are_told_of(whole_grid: WholeGrid) -> None:
    seats = {ad.seat.partition(".")[2]: ad for ad in whole_grid.client.workers()}
    assert seats["bench"].concurrency == 4
    assert seats["bench"].state == "ready"
    assert "gridq:local.own_stages" in seats["local"].queues


def test_every_key_has_a_ttl_afterwards(whole_grid: WholeGrid) -> None:
    assert not find_keys_without_ttl(whole_grid.client.redis, whole_grid.config.prefix)
    client = whole_grid.client
    for name in ("leases", "lease_info", "inbox", "answers", "deadlines"):
        wait_for(lambda name=name: not client.redis.exists(client.keys(name)), 5)  # type: ignore[misc]
    assert json.dumps(client.status("nothing")) == "null"


def _bench_seat(client: Client) -> str:
    return next(ad.seat for ad in client.workers() if ad.kind == "bench")
