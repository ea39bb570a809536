"""sweep.lua: a stage that waits for unavailable seats ends as new work is refused."""

from __future__ import annotations

import json
import time

import pytest

from gridq.errors import NoLiveSeat
from gridq.graph.plan import Plan, Scope
from gridq.protocol.seat_states import Unavailable, format_unavailable
from tests.unit.store.plans import ANY, Grid, one, plan, step

pytestmark = pytest.mark.usefixtures("key_hygiene")

HOUR = 3600.0
DAY = 24 * HOUR


def make_unavailable(
    grid: Grid, seat: str, state: str, seconds: float | None, *, ago: float = 60.0, inc: str = "i1"
) -> None:
    """Make a seat unavailable since `ago` for `seconds` from now; None: nobody knows for how long."""
    now = time.time()
    why = Unavailable(state, "so it is", now - ago, None if seconds is None else now + seconds)
    grid.scripts.leave(seat, inc, "drain", format_unavailable([((ANY,), why)]))


def waiting(grid: Grid, given: Plan | None = None, **fields: str) -> str:
    """Return a job whose first stage has waited for a minute. `fields`: more of its record's."""
    name = grid.job(given or one(), more={field.replace("_0", ":0"): text for field, text in fields.items()})
    grid.client.hincrby(grid.keys("job", name), "ready_at:0", -60_000)
    return name


def refusal(grid: Grid, job: str) -> NoLiveSeat | None:
    """Return the error that ended a job at the next sweep; None if it goes on."""
    grid.sweep()
    end = grid.end(job)
    error = None if end is None else end.to_error()
    assert error is None or isinstance(error, NoLiveSeat), error
    return error


@pytest.mark.parametrize("state", ["key_refused", "no_credit", "logged_out", "degraded", "broken_install"])
def test_a_cooldown_that_needs_the_owner_ends_every_job_that_waits(grid: Grid, state: str) -> None:
    grid.seat()
    job = waiting(grid)
    make_unavailable(grid, "m.a", state, 60)
    error = refusal(grid, job)
    assert error is not None
    assert (error.code, error.path, error.details["queue"]) == ("seat.none_live", "root", ANY)
    assert 50 < error.details["retry_after"] <= 60
    assert state in error.reason


@pytest.mark.parametrize("state", ["rate_limited", "overloaded", "unreachable", "failing", "paused"])
def test_a_cooldown_that_passes_ends_no_graph_that_may_outlast_it(grid: Grid, state: str) -> None:
    grid.seat()
    job = waiting(grid)
    make_unavailable(grid, "m.a", state, 60)
    assert refusal(grid, job) is None


def test_a_cooldown_beyond_the_deadline_ends_the_job(grid: Grid) -> None:
    grid.seat()
    job = waiting(grid)
    make_unavailable(grid, "m.a", "rate_limited", 3 * DAY)
    error = refusal(grid, job)
    assert error is not None
    assert error.details["retry_after"] == pytest.approx(3 * DAY, abs=5)


def test_a_pause_without_an_end_may_end_at_any_time(grid: Grid) -> None:
    grid.seat()
    job = waiting(grid)
    make_unavailable(grid, "m.a", "paused", None)
    assert refusal(grid, job) is None
    error = refusal(grid, waiting(grid, client_waits="1"))
    assert error is not None
    assert "retry_after" not in error.details


def test_a_request_whose_client_waits_ends_by_any_cooldown(grid: Grid) -> None:
    grid.seat()
    make_unavailable(grid, "m.a", "rate_limited", 60)
    error = refusal(grid, waiting(grid, client_waits="1"))
    assert error is not None
    assert 50 < error.details["retry_after"] <= 60


def test_a_seat_whose_cooldown_is_over_is_tried_first(grid: Grid) -> None:
    grid.seat()
    make_unavailable(grid, "m.a", "unreachable", -1)
    assert refusal(grid, waiting(grid, client_waits="1")) is None


def test_a_job_that_waits_for_a_seat_goes_on(grid: Grid) -> None:
    grid.seat()
    job = waiting(grid, wait_for_seat="1")
    make_unavailable(grid, "m.a", "key_refused", DAY)
    assert refusal(grid, job) is None


@pytest.mark.parametrize("late", ["the seat", "the stage"])
def test_the_stage_waits_as_long_as_new_work(grid: Grid, late: str) -> None:
    grid.seat()
    job = grid.job(one()) if late == "the stage" else waiting(grid)
    make_unavailable(grid, "m.a", "key_refused", 60, ago=1 if late == "the seat" else 60)
    assert refusal(grid, job) is None
    make_unavailable(grid, "m.a", "key_refused", 60, ago=11)
    grid.client.hincrby(grid.keys("job", job), "ready_at:0", -11_000)
    assert refusal(grid, job) is not None


def test_another_seat_that_fits_keeps_the_stage(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(one(), "busy")
    grid.take("m.b")
    job = waiting(grid)
    make_unavailable(grid, "m.a", "key_refused", 60)
    assert refusal(grid, job) is None, "m.b is busy, which is live"
    make_unavailable(grid, "m.b", "rate_limited", 60)
    assert refusal(grid, job) is None, "m.b will be back before the deadline"
    make_unavailable(grid, "m.b", "no_credit", 90)
    error = refusal(grid, job)
    assert error is not None
    assert 50 < error.details["retry_after"] <= 60, "the first that is back"


@pytest.mark.parametrize("why", ["pinned", "lent", "avoided"])
def test_a_seat_that_may_not_take_the_stage_does_not_keep_it(grid: Grid, why: str) -> None:
    grid.seat("m.a")
    grid.seat("m.b", lent_to=["team:x"] if why == "lent" else ())
    unfit = {"pinned": "=m.a", "avoided": "m.b"}.get(why)
    job = waiting(grid, excluded_0=unfit, unfit_0=unfit) if unfit else waiting(grid)
    make_unavailable(grid, "m.a", "key_refused", 60)
    assert refusal(grid, job) is not None


def test_a_seat_that_the_stage_may_not_use_ends_nothing(grid: Grid) -> None:
    grid.seat("m.a")
    job = waiting(grid, excluded_0="=m.gone", unfit_0="=m.gone")
    make_unavailable(grid, "m.a", "key_refused", 60)
    assert refusal(grid, job) is None, "its seat is gone, and not unavailable"


def test_fall_backs_count(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b", "bench:other")
    name = waiting(grid, plan(step(fallbacks=("bench:other",))))
    make_unavailable(grid, "m.a", "key_refused", 60)
    assert refusal(grid, name) is None
    now = time.time()
    why = Unavailable("no_credit", "", now - 60, now + 60)
    grid.scripts.leave("m.b", "i1", "drain", format_unavailable([(("bench:other",), why)]))
    error = refusal(grid, name)
    assert error is not None
    assert error.details["queues"] == [ANY, "bench:other"]


@pytest.mark.parametrize("cause", ["gone", "withdrawn"])
def test_messages_name_a_model_as_its_owner_wrote_it(grid: Grid, cause: str) -> None:
    queue = "llm:qwen3%3A8b"
    grid.seat("m.a", queue)
    job = waiting(grid, one(queue=queue), client_waits="1")
    if cause == "gone":
        leave(grid, "m.a")
    else:
        grid.seat("m.a", "llm:other")
        grid.client.zadd(grid.keys("served_queues"), {queue: time.time() - 60})
    error = refusal(grid, job)
    assert error is not None
    assert error.details["queue"] == queue, "the field has the queue's own name"
    assert "llm:qwen3:8b" in error.message
    assert queue not in f"{error.message} {error.reason}"


def test_a_model_in_cooldown_counts_as_its_queues(grid: Grid) -> None:
    grid.seat("m.a", "bench:x", "bench:y")
    job = waiting(grid, one(queue="bench:x"))
    other = waiting(grid, one(queue="bench:y"))
    now = time.time()
    unavailable = format_unavailable(
        [(("bench:x",), Unavailable("degraded", "no such model", now - 60, now + 60))]
    )
    grid.seat("m.a", "bench:y", unavailable=unavailable)
    assert refusal(grid, job) is not None
    assert grid.end(other) is None
    grid.seat("m.a", "bench:x", "bench:y")
    assert refusal(grid, waiting(grid, one(queue="bench:x"))) is None, "it is over"


def test_a_retry_starts_over(grid: Grid) -> None:
    grid.seat()
    job = waiting(grid, plan(step(scope=0), scopes=[Scope("root", None, 2, 1000, ((0, 0),))]))
    make_unavailable(grid, "m.a", "key_refused", 60)
    assert refusal(grid, job) is None
    assert grid.field(job, "scope_epoch:0") == "1"


def leave(grid: Grid, seat: str, *, ago: float = 60.0) -> None:
    """End the worker of a seat, `ago` before now."""
    grid.scripts.leave(seat, "i1", "go")
    grid.client.zincrby(grid.keys("gone_seats"), -ago * 1000, seat)


def test_a_seat_that_has_gone_ends_the_request_whose_client_waits(grid: Grid) -> None:
    grid.seat()
    graph, request, patient = (
        waiting(grid, **fields)
        for fields in ({}, {"client_waits": "1"}, {"client_waits": "1", "wait_for_seat": "1"})
    )
    leave(grid, "m.a")
    error = refusal(grid, request)
    assert error is not None
    assert (error.code, error.path, error.details["queue"]) == ("seat.none_live", "root", ANY)
    assert "retry_after" not in error.details
    assert grid.end(graph) is None
    assert grid.end(patient) is None


@pytest.mark.parametrize("way", ["at once", "after an outage", "after a restart"])
def test_a_seat_that_offers_other_models_now_ends_the_request_for_one_that_it_had(
    grid: Grid, way: str
) -> None:
    """An engine that starts again with other models; else the request waits for a day."""
    grid.seat()
    graph, request = waiting(grid), waiting(grid, client_waits="1")
    if way == "after an outage":
        grid.scripts.leave("m.a", "i1", "drain")
    if way == "after a restart":
        grid.scripts.leave("m.a", "i1", "go")
    incarnation = "i2" if way == "after a restart" else "i1"
    grid.seat("m.a", "llm:other", inc=incarnation)
    assert refusal(grid, request) is None
    grid.client.zincrby(grid.keys("served_queues"), -60, ANY)
    error = refusal(grid, request)
    assert error is not None
    assert (error.code, error.details["queue"]) == ("seat.none_live", ANY)
    assert "another model" in (error.fix or "")
    assert grid.end(graph) is None
    grid.seat("m.a", inc=incarnation)
    assert grid.take("m.a", inc=incarnation).job == graph


@pytest.mark.parametrize("how", ["it has just ended", "it is stopping", "it is back"])
def test_a_restart_of_a_worker_ends_no_request(grid: Grid, how: str) -> None:
    grid.seat()
    request = waiting(grid, client_waits="1")
    if how == "it is stopping":
        grid.scripts.leave("m.a", "i1", "drain")
        assert refusal(grid, request) is None
        found = json.loads(grid.client.hget(grid.keys("unavailable_seats"), "m.a"))
        found[0]["since"] -= 60_000
        grid.client.hset(grid.keys("unavailable_seats"), "m.a", json.dumps(found))
    else:
        leave(grid, "m.a", ago=9 if how == "it has just ended" else 60)
    if how == "it is back":
        grid.seat("m.a", inc="i2")
        assert grid.client.zscore(grid.keys("gone_seats"), "m.a") is None
    assert refusal(grid, request) is None
    if how == "it is back":
        assert grid.take("m.a", inc="i2").job == request


def test_a_seat_that_has_just_ended_may_be_back_before_one_in_cooldown(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    request, graph = waiting(grid, client_waits="1"), waiting(grid)
    make_unavailable(grid, "m.a", "key_refused", 60)
    leave(grid, "m.b", ago=5)
    assert refusal(grid, request) is None
    assert grid.end(graph) is None
    grid.client.zincrby(grid.keys("gone_seats"), -6000, "m.b")
    error = refusal(grid, request)
    assert error is not None
    assert "m.a is key_refused" in error.reason
    assert grid.end(graph) is not None


@pytest.mark.parametrize("why", ["pinned", "lent"])
def test_the_only_seat_that_may_take_the_request_has_gone(grid: Grid, why: str) -> None:
    grid.seat("m.a")
    grid.seat("m.b", lent_to=["team:x"] if why == "lent" else ())
    unfit = {"excluded_0": "=m.a", "unfit_0": "=m.a"} if why == "pinned" else {}
    request = waiting(grid, client_waits="1", **unfit)
    leave(grid, "m.a", ago=5)
    assert refusal(grid, request) is None
    grid.client.zincrby(grid.keys("gone_seats"), -6000, "m.a")
    assert refusal(grid, request) is not None


def test_no_time_counts_in_which_no_worker_could_start(grid: Grid) -> None:
    grid.seat()
    request = waiting(grid, client_waits="1")
    grid.sweep()
    leave(grid, "m.a", ago=5)
    grid.client.set(grid.keys("last_sweep"), grid.now() - 60_000, ex=60)  # the server was away
    grid.client.zincrby(grid.keys("gone_seats"), -60_000, "m.a")
    grid.scripts.sweep(200)
    assert refusal(grid, request) is None
    grid.client.zincrby(grid.keys("gone_seats"), -11_000, "m.a")
    assert refusal(grid, request) is not None


def test_a_seat_that_leaves_is_no_longer_in_cooldown(grid: Grid) -> None:
    grid.seat()
    job = waiting(grid)
    make_unavailable(grid, "m.a", "key_refused", 60, ago=1)
    leave(grid, "m.a")
    assert refusal(grid, job) is None
    assert grid.client.hgetall(grid.keys("unavailable_seats")) == {}


def test_many_stages_end_in_batches(grid: Grid) -> None:
    grid.seat()
    jobs = [waiting(grid) for _ in range(10)]
    make_unavailable(grid, "m.a", "key_refused", 60)
    found = [grid.sweep(4)[0]["expired"] for _ in range(4)]
    assert found == [4, 4, 2, 0]
    assert all(grid.end(job) is not None for job in jobs)


def test_a_seat_that_an_operator_drains_is_unavailable(grid: Grid) -> None:
    grid.seat()
    grid.client.set(grid.keys("drain", "m.a"), "1", ex=1000)
    grid.scripts.renew("m.a", "i1", [])
    graph, request = waiting(grid), waiting(grid, client_waits="1")
    assert refusal(grid, request) is None, "it is drained since a moment"
    found = json.loads(grid.client.hget(grid.keys("unavailable_seats"), "m.a"))
    found[0]["since"] -= 60_000
    grid.client.hset(grid.keys("unavailable_seats"), "m.a", json.dumps(found))
    error = refusal(grid, request)
    assert error is not None
    assert "draining" in error.reason
    assert grid.end(graph) is None
    grid.client.delete(grid.keys("drain", "m.a"))
    grid.scripts.renew("m.a", "i1", [])
    assert grid.client.exists(grid.keys("unavailable_seats")) == 0


def test_a_call_looks_at_a_bounded_part_of_very_many_classes(grid: Grid) -> None:
    grid.seat()
    jobs = [waiting(grid, one(cost=cost)) for cost in range(1, 61)]  # each cost is a class
    make_unavailable(grid, "m.a", "key_refused", 60)
    ended = []
    while not ended or ended[-1] == 20:
        assert len(ended) < 10
        found = grid.sweep(20)
        ended.append(found[0]["expired"])
    assert max(ended) == 20
    assert sum(ended) == len(jobs)
    assert all(grid.end(job) for job in jobs)


def test_any_reason_can_be_told(grid: Grid) -> None:
    """Otherwise the server would not know that the seat takes nothing."""
    grid.seat()
    now = time.time()
    why = Unavailable("key_refused", 'a\ud800b\0"}],' + "\U0001f600" * 400, now - 60, now + 60)
    grid.scripts.leave("m.a", "i1", "drain", format_unavailable([((ANY,), why)]))
    error = refusal(grid, waiting(grid))
    assert error is not None
    assert 'm.a is key_refused: a?b\0"}],' in error.reason


def test_a_clock_that_was_set_back_holds_no_stage(grid: Grid) -> None:
    grid.seat()
    job = waiting(grid)
    make_unavailable(grid, "m.a", "key_refused", 60, ago=-HOUR)
    assert refusal(grid, job) is None, "as if it were unavailable since now"
    found = json.loads(grid.client.hget(grid.keys("unavailable_seats"), "m.a"))
    assert found[0]["since"] <= grid.now()
