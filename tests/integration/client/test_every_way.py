"""The same behaviour of every client: synchronous and asyncio, by the server and by a gateway."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Any

import pytest

import gridq
from gridq import errors
from gridq.client import Client
from gridq.config.settings import settings
from gridq.errors import GridError
from gridq.protocol.states import JobState, StageState
from tests.builders import seq, stage
from tests.integration.client.conftest import Place
from tests.waiting import wait_for

ECHO = {"root": stage("bench_echo")}
SLEEP = {"root": stage("bench_sleep", ms=60_000)}
TOKENS = {"root": stage("bench_tokens", n=5, ms=20)}


@pytest.mark.parametrize(
    "value", [None, True, 1, -2.5, "", "ü\n\ud800", [], [1, [None]], {"a": {"b": "ä"}}, "x" * 300_000]
)
def test_an_input_comes_back_unchanged(client: Client, value: Any) -> None:
    assert client.run(ECHO, value, timeout=30) == value


def test_a_graph_may_be_text_and_deep(client: Client) -> None:
    assert client.run('{"root": {"op": "Stage", "id": "bench_echo"}}', 7, timeout=30) == 7
    deep = stage("bench_echo")
    for _ in range(100):
        deep = seq(deep)
    assert client.run({"root": deep}, 8, timeout=30) == 8


def test_options_are_stored_with_the_job(client: Client) -> None:
    options: dict[str, Any] = {"name": "my job", "agent": "ann", "priority": "batch", "deadline": 100.0}
    job = client.submit(SLEEP, **options, queue_timeout=50.0, session="s", wait_for_seat=True)
    view = client.view(job)
    assert (view.name, view.agent, view.priority) == ("my job", "ann", "batch")
    assert view.deadline is not None
    assert view.deadline - view.submitted == pytest.approx(100)
    client.cancel(job)


def test_a_view_follows_the_job(client: Client) -> None:
    job = client.submit({"root": seq(stage("bench_echo"), stage("bench_sleep", ms=60_000))}, {"ms": 60_000})
    view = wait_for(
        lambda: client.view(job), true=lambda view: view.done and view.find_stages(StageState.RUNNING)
    )
    assert [(each.stage, each.state) for each in view.stages] == [
        ("bench_echo", StageState.DONE),
        ("bench_sleep", StageState.RUNNING),
    ]
    assert (view.done, view.of, view.state) == (1, 2, JobState.RUNNING)
    assert client.status(job) is JobState.RUNNING
    assert client.waits_for(job) == "bench_sleep, which runs on bench@m"
    assert client.find(job[:18]) == client.find(job) == job
    assert [row.stage for row in client.rows(job)] == ["bench_echo"]
    assert not client.wait(job, 0.05)
    assert job in [each.job for each in client.jobs(5, "running")]
    assert job not in [each.job for each in client.jobs(50, JobState.DONE)]
    assert client.cancel(job)
    assert client.wait(job, 10)
    assert not client.cancel(job)
    assert client.status(job) is JobState.CANCELLED
    assert client.waits_for(job) == ""


def test_seats_and_queues_are_listed(client: Client) -> None:
    job = client.submit({"root": stage("bench_echo", slug="rare")}, wait_for_seat=True)
    assert [seat.seat for seat in client.workers()] == ["m.bench", "m.local"]
    assert [seat.seat for seat in client.seats()] == ["m.bench", "m.local", "m.router"]
    # A gateway looks once a second for all.
    queues = wait_for(client.queues, true=lambda found: "bench:rare" in [each.queue for each in found])
    rare = next(each for each in queues if each.queue == "bench:rare")
    assert (rare.pending["interactive"], rare.concurrency, rare.seats) == (1, 0, [])
    assert rare.oldest_ms is not None
    client.cancel(job)


def test_a_stage_in_quarantine_is_released_or_dropped(client: Client) -> None:
    job = client.submit({"root": stage("bench_die")}, {})
    [found] = wait_for(client.quarantined)
    assert (found.job, found.path, found.queue, found.deaths) == (job, "root", "bench:any", 2)
    assert client.release(job, "root")
    wait_for(client.quarantined)  # it did so again
    assert client.drop(job, found.step)
    assert not client.drop(job, "root")
    with pytest.raises(errors.StageQuarantined):
        client.result(job, 10)
    with pytest.raises(errors.NotQuarantined):
        client.release(job, "root")


def test_a_stream_can_be_read_again_from_the_beginning(client: Client) -> None:
    job = client.submit(TOKENS, stream=True)
    pieces = [(piece.path, piece.value) for piece in client.stream(job)]
    assert pieces == [("root", f"token{number} ") for number in range(5)]
    assert [(piece.path, piece.value) for piece in client.stream(job)] == pieces
    assert client.result(job, 10) == "".join(value for _, value in pieces)


def test_a_job_without_a_stream_says_so_while_it_runs_and_when_it_has_ended(client: Client) -> None:
    job = client.submit({"root": stage("bench_sleep", ms=500)}, {"ms": 500})
    for _ in range(2):
        with pytest.raises(errors.NotStreamed) as caught:
            list(client.stream(job))
        assert (caught.value.code, caught.value.path) == ("job.not_streamed", job)
        assert "stream=True" in (caught.value.fix or "")
        assert client.wait(job, 20)


def test_a_stream_without_pieces_ends(client: Client) -> None:
    job = client.submit({"root": stage("bench_echo")}, 1, stream=True)
    assert list(client.stream(job)) == []
    assert client.result(job, 10) == 1


def test_a_stream_ends_with_the_jobs_error(client: Client) -> None:
    job = client.submit({"root": stage("bench_fail")}, {}, stream=True)
    with pytest.raises(errors.StageError) as caught:
        list(client.stream(job))
    assert caught.value.worker == "m.bench"


def test_a_silent_stream_times_out(client: Client) -> None:
    job = client.submit(SLEEP, stream=True)
    with pytest.raises(errors.WaitTimeout) as caught:
        list(client.stream(job, timeout=0.5))
    assert caught.value.details["job"] == job
    assert client.status(job) is JobState.RUNNING
    client.cancel(job)


def test_closing_a_stream_does_not_end_the_job(client: Client) -> None:
    job = client.submit({"root": stage("bench_tokens", n=20, ms=20)}, stream=True)
    with closing(client.stream(job)) as pieces:  # type: ignore[type-var]
        assert next(pieces).value == "token0 "
    assert len(client.result(job, 30).split()) == 20


def test_a_time_out_says_what_the_job_waits_for_and_does_not_end_it(client: Client) -> None:
    job = client.submit(SLEEP)
    wait_for(lambda: client.view(job), true=lambda view: view.find_stages(StageState.RUNNING))
    with pytest.raises(errors.WaitTimeout, match=r"did not end within 0\.2 s") as caught:
        client.result(job, timeout=0.2)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.details == {
        "path": job,
        "job": job,
        "fix": "wait longer: the job continues",
        "reason": "it waits for bench_sleep, which runs on bench@m",
        "waits_for": "bench_sleep, which runs on bench@m",
    }
    assert client.cancel(job)
    with pytest.raises(errors.JobCancelled):
        client.result(job, 10)


def test_the_same_id_or_key_is_the_same_job(client: Client) -> None:
    mine = f"mine-{secrets.token_hex(4)}"
    assert client.submit(ECHO, 1, job=mine) == client.submit(ECHO, 1, job=mine) == mine
    with pytest.raises(errors.IdempotencyConflict) as caught:
        client.submit(ECHO, 2, job=mine)
    assert caught.value.details["job"] == mine
    key = secrets.token_hex(4)
    first = client.submit(ECHO, 1, idempotency_key=key)
    assert client.submit(ECHO, 1, idempotency_key=key) == first
    with pytest.raises(errors.IdempotencyConflict):
        client.submit(ECHO, 2, idempotency_key=key)
    assert client.submit(ECHO, 1) != client.submit(ECHO, 1)


def test_all_clients_see_the_same_jobs(client: Client, place: Place) -> None:
    key = secrets.token_hex(4)
    with Client(config=place.config) as server, Client(place.url, config=place.config) as gateway:
        jobs = {each.submit(ECHO, 5, idempotency_key=key) for each in (client, server, gateway)}
    [job] = jobs
    assert client.result(job, 30) == 5


def test_module_functions_use_the_configured_grid(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_URL", place.url)
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://127.0.0.1:1/0")
    settings.cache_clear()
    gridq.client.get_default_client.cache_clear()
    try:
        job = gridq.submit(TOKENS, stream=True)
        assert [piece.value for piece in gridq.stream(job)] == [f"token{number} " for number in range(5)]
        assert gridq.result(job, 10) == "".join(f"token{number} " for number in range(5))
        assert not gridq.cancel(job)
    finally:
        gridq.client.get_default_client().close()
        gridq.client.get_default_client.cache_clear()
        settings.cache_clear()


WRONG: dict[str, Any] = {
    "no such stage": lambda client: client.submit({"root": stage("bench_eco")}),
    "no JSON": lambda client: client.submit("{"),
    "no operator": lambda client: client.submit({"root": {"op": "Stge"}}),
    "no graph": lambda client: client.submit([]),
    "no JSON value": lambda client: client.submit(ECHO, float("nan")),
    "a set": lambda client: client.submit(ECHO, {1, 2}),
    "no such option": lambda client: client.submit(ECHO, priorty="batch"),
    "a wrong option": lambda client: client.submit(ECHO, priority="now"),
    "a wrong id": lambda client: client.submit(ECHO, job="a/b"),
    "too long": lambda client: client.submit(ECHO, "x" * (9 << 20)),
    "an unserved stage": lambda client: client.submit({"root": stage("bench_echo", slug="rarer")}),
    "a stage fails": lambda client: client.run({"root": stage("bench_fail")}, {}, timeout=30),
    "no such job": lambda client: client.result("none-such", 1),
    "no id": lambda client: client.result("a/../b", 1),
    "dots for an id": lambda client: client.result("..", 1),
    "an empty id": lambda client: client.view(""),
    "no job to wait for": lambda client: client.wait("none-such", 1),
    "no job to follow": lambda client: list(client.stream("none-such", 1)),
    "no job to cancel": lambda client: client.cancel("none-such"),
    "no job to find": lambda client: client.find("none-such"),
    "nothing to release": lambda client: client.release("none-such", "root"),
    "nothing to drop": lambda client: client.drop("none-such", 0),
    "no such state": lambda client: client.jobs(5, "asleep"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_each_error_is_the_same_by_every_way(wrong: str, client: Client, place: Place) -> None:
    with pytest.raises(GridError) as caught:
        WRONG[wrong](client)
    with Client(config=place.config) as server, pytest.raises(GridError) as expected:
        WRONG[wrong](server)
    assert type(caught.value) is type(expected.value)
    assert _steady(caught.value) == _steady(expected.value)


def test_an_unknown_job_has_no_status_and_no_rows(client: Client) -> None:
    assert client.status("none-such") is None
    assert client.rows("none-such") == []
    assert client.waits_for("none-such") == ""
    assert client.quarantined() == []


def _steady(error: GridError) -> dict[str, Any]:
    """Return the fields of an error, except those that differ each time."""
    changing = ("worker", "attempt", "waited_seconds")
    details = {name: value for name, value in error.details.items() if name not in changing}
    if "waited_seconds" in error.details:  # `retry_after` counts from the end of the wait
        details["retry_after"] = round(details["retry_after"] + error.details["waited_seconds"])
    return {"message": error.message, "code": error.code, **details}
