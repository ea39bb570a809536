"""Jobs by Celery and by the client on a grid of real processes."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

import gridq
from gridq import errors
from gridq.client import AsyncClient
from gridq.protocol.states import JobState
from gridq.views.audit import find_keys_without_ttl
from tests.acceptance.grids import WholeGrid
from tests.builders import parallel, seq, stage
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("whole_grid")


ECHO = {"root": stage("bench_echo")}


def test_delay_get_returns_the_answer() -> None:
    assert gridq.run_graph.delay(ECHO, {"a": [1, "ü", None]}).get(timeout=20) == {"a": [1, "ü", None]}


def test_a_graph_crosses_queues_and_workers(whole_grid: WholeGrid) -> None:
    both = {
        "root": seq(
            parallel(where=stage("pid"), what=stage("bench_echo")),
            stage("text_template", template="{{what}} there"),
        )
    }
    job = gridq.run_graph.delay(both, {"what": "hello"})
    assert job.get(timeout=20) == "hello there"
    rows = {row.path: row for row in whole_grid.client.rows(job.id)}
    assert rows["root.stages[0].branches.where"].queue == "gridq:local.own_stages"
    assert rows["root.stages[0].branches.where"].worker.startswith("local@")
    assert rows["root.stages[0].branches.what"].worker.startswith("bench@")
    assert rows["root.stages[1]"].queue == "gridq:pure"


def test_a_failure_reaches_get_with_its_place_and_cause() -> None:
    with pytest.raises(errors.StageError) as caught:
        gridq.run_graph.delay({"root": seq(stage("bench_echo"), stage("boom"))}, 1).get(timeout=20)
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


def test_a_hundred_jobs_run_at_once_on_one_event_loop(whole_grid: WholeGrid) -> None:
    async def run_all() -> list[int]:
        async with AsyncClient(config=whole_grid.config) as client:
            return await asyncio.gather(*(client.run(ECHO, number, timeout=20) for number in range(100)))

    assert asyncio.run(run_all()) == list(range(100))


def test_long_values_pass_whole(whole_grid: WholeGrid) -> None:
    text = "ü" * 1_000_000
    chain = {"root": seq(stage("bench_echo"), stage("pick", path="$"), stage("bench_echo"))}
    assert gridq.run_graph.delay(chain, text).get(timeout=30) == text
    assert whole_grid.client.run(chain, text, timeout=30) == text


def test_prompts_are_dropped_once_answered(whole_grid: WholeGrid) -> None:
    secret = {"root": stage("bench_echo", note="for the stage only")}
    job = whole_grid.client.submit(secret, {"text": "a secret prompt"})
    whole_grid.client.result(job, timeout=20)
    left = list(whole_grid.client.redis.scan_iter(f"{whole_grid.config.prefix}*{job}*"))
    assert {key.split(b":")[1] for key in left} <= {b".summary", b".result", b".rows"}


def test_the_same_id_is_the_same_job(whole_grid: WholeGrid) -> None:
    first = gridq.run_graph.apply_async((ECHO, 1), task_id="same-id-1")
    again = gridq.run_graph.apply_async((ECHO, 1), task_id="same-id-1")
    assert first.get(timeout=20) == again.get(timeout=20) == 1
    assert len(whole_grid.client.rows("same-id-1")) == 1


def test_celerys_revoke_cancels_the_job(whole_grid: WholeGrid) -> None:
    job = gridq.run_graph.delay({"root": stage("bench_sleep", ms=60_000)})
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
        gridq.run_graph.delay({"root": stage("bench_sleep", ms=60_000)}, deadline=0.5).get(timeout=20)


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


def test_every_key_has_a_ttl_afterwards(whole_grid: WholeGrid) -> None:
    assert not find_keys_without_ttl(whole_grid.client.redis, whole_grid.config.prefix)
    client = whole_grid.client
    for name in ("leases", "lease_info", "inbox", "answers", "deadlines"):
        wait_for(lambda name=name: not client.redis.exists(client.keys(name)), 5)  # type: ignore[misc]
