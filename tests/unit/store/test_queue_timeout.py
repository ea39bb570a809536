"""A job whose stage is ready for longer than its queue timeout expires."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from gridq.errors import GridError
from gridq.graph.plan import Scope
from gridq.protocol.meters import describe_shortage, format_local_time
from gridq.protocol.models import Limit
from gridq.protocol.seat_states import Unavailable, format_unavailable
from gridq.protocol.states import JobState
from gridq.store.replies import Accepted, AlreadyKnown
from tests.unit.store.limits import limit
from tests.unit.store.plans import ANY, HOUR, Grid, chain, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

MINUTE = 60_000


def timers(grid: Grid) -> list[str]:
    """Return the entries that may end a job."""
    found = [entry.decode() for entry in grid.client.zrange(grid.keys("delays"), 0, -1)]
    return [entry for entry in found if entry[0] in "qi"]


def end_timers(grid: Grid) -> None:
    """Let all running timers end, and sweep."""
    for entry in timers(grid):
        grid.age("delays", entry)
    grid.sweep()


def error(grid: Grid, job: str) -> GridError:
    end = grid.ended(job)
    assert end.state is JobState.EXPIRED
    found = end.to_error()
    assert found is not None
    return found


def test_the_timeout_runs_from_when_the_stage_became_ready(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(2), "j1", queue_timeout_ms=MINUTE)
    due: float = grid.client.zscore(grid.keys("delays"), "queue_timeout:j1:0:0.0")
    assert 0 < due - grid.now() <= MINUTE
    first = grid.take()
    assert timers(grid) == []  # it was taken
    grid.done(first)
    assert timers(grid) == ["queue_timeout:j1:1:0.0"]
    end_timers(grid)
    assert error(grid, "j1").code == "job.queue_timeout"
    assert grid.pending() == []
    assert timers(grid) == []


def test_the_error_has_stage_queue_seconds_and_reason(grid: Grid) -> None:
    grid.job(one(), "j1", queue_timeout_ms=1500)
    end_timers(grid)
    found = error(grid, "j1")
    assert found.details == {
        "path": "root",
        "queue": ANY,
        "seconds": 1.5,
        "reason": "no live seat serves it and takes work",
        "fix": "start a worker that serves it",
    }
    assert "1.5 s" in str(found)


def test_seats_that_take_no_work_are_named(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", queue_timeout_ms=1500)
    why = Unavailable("key_refused", "the key was refused", time.time())
    grid.scripts.leave("m.a", "i1", "drain", format_unavailable([((ANY,), why)]))
    end_timers(grid)
    found = error(grid, "j1")
    assert found.code == "job.queue_timeout"
    assert found.reason == "m.a is key_refused: the key was refused"
    assert "gridq seat retry" in (found.fix or "")


def reason(grid: Grid, **options: Any) -> str:
    grid.job(one(cost=options.pop("cost", 0)), "late", queue_timeout_ms=MINUTE, **options)
    end_timers(grid)
    return str(error(grid, "late").reason)


def test_the_reason_is_busy_slots(grid: Grid) -> None:
    grid.seat(concurrency=1)
    grid.job(one(), "j1")
    grid.take()
    assert reason(grid) == "all slots of its seats were busy (1)"


def test_the_reason_is_exclusion(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", queue_timeout_ms=MINUTE)
    grid.fail(grid.take(), "seat", pause_ms=HOUR)
    end_timers(grid)
    assert error(grid, "j1").reason == "the seats that serve it failed it or lack what it needs"


def test_the_reason_is_a_used_up_budget(grid: Grid) -> None:
    grid.seat(budget=10)
    why = "the budgets of the seats that serve it do not suffice"
    assert reason(grid, cost=900) == f"{why}: m.a has $0.00001 left of $0.00001 a month"


def test_the_reason_has_the_reset_time_of_the_budget(grid: Grid) -> None:
    grid.seat(limits=[Limit(resource="tokens", window="5h", amount=7)])
    grid.job(one(), "j1")
    grid.done(grid.take(), tokens=(3, 4))
    shown = reason(grid)
    (meter,) = grid.meters("m.a")
    assert meter.resets_at is not None
    assert shown.endswith(
        f": m.a has 0 tokens left of 7 tokens in 5h, until {format_local_time(meter.resets_at)}"
    )
    assert shown.endswith(describe_shortage(meter, "m.a"))  # as explain and whoever waits tell it
    details = error(grid, "late").details
    assert "turns_at" not in details
    assert datetime.fromisoformat(details["retry_at"]).timestamp() == meter.resets_at // 1000


def test_gpu_seconds_are_told_in_seconds(grid: Grid) -> None:
    limit = Limit(resource="gpu_seconds", window="day", amount=2_500)
    grid.seat(limits=[limit], hourly_price=(0, 600_000))
    grid.job(one(), "j1")
    grid.done(grid.take(), tokens=(0, 0, 2.5))
    shown = reason(grid)
    (meter,) = grid.meters("m.a")
    assert "0 GPU seconds left of 2.5 GPU seconds a day" in shown
    assert shown.endswith(describe_shortage(meter, "m.a")), "as explain tells it"


@pytest.mark.parametrize(
    ("queue", "shown"), [("llm:qwen3%3A8b", "llm:qwen3:8b"), ("llm:a%ED%A0%80%0A", "llm:a%ED%A0%80%0A")]
)
def test_the_message_names_a_model_as_its_owner_wrote_it(grid: Grid, queue: str, shown: str) -> None:
    grid.seat("m.a", queue)
    grid.job(one(queue=queue), "j1", queue_timeout_ms=MINUTE)
    end_timers(grid)
    found = error(grid, "j1")
    assert f" {shown} " in found.message
    assert found.details["queue"] == queue


def test_the_reason_is_a_used_up_rate(grid: Grid) -> None:
    grid.seat(concurrency=2, requests_per_minute=1)
    grid.job(one(), "j1")
    grid.take()
    assert reason(grid) == "its seats had used up their requests of the minute"


def test_the_reason_is_the_agents_limit(grid: Grid) -> None:
    grid.seat()
    limit(grid, "[agents.ann]\nmonthly_cents = 1")
    grid.job(one(cost=500), "j1", queue_timeout_ms=MINUTE)
    limit(grid, "[agents.ann]\nmonthly_cents = 0")
    end_timers(grid)
    assert "over its limits" in str(error(grid, "j1").reason)


def test_the_reason_is_an_idle_seat(grid: Grid) -> None:
    grid.seat()
    assert reason(grid) == "a seat that serves it was free and did not take it"


def test_a_returned_stage_gets_a_new_timer(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", queue_timeout_ms=MINUTE)
    claim = grid.take()
    grid.lapse(claim)
    assert timers(grid) == ["queue_timeout:j1:0:0.1"]
    due: float = grid.client.zscore(grid.keys("delays"), "queue_timeout:j1:0:0.1")
    assert due > grid.now()
    grid.wait_over()
    assert error(grid, "j1").code == "job.queue_timeout"


@pytest.mark.parametrize(
    ("report", "left"),
    [("done", ["queue_timeout:j1:1:0.0"]), ("stage", []), ("back", ["queue_timeout:j1:0:0.1"])],
)
def test_a_report_of_a_lapsed_attempt_stops_its_timer(grid: Grid, report: str, left: list[str]) -> None:
    """No timer is left for a stage that is no longer ready or a job that has ended."""
    grid.seat()
    grid.job(chain(2), "j1", queue_timeout_ms=MINUTE)
    claim = grid.take()
    grid.lapse(claim)
    if report == "done":
        grid.done(claim)
    else:
        grid.fail(claim, report)
    assert timers(grid) == left
    assert bool(grid.client.exists(grid.keys("job", "j1"))) == bool(left)


def test_a_retry_stops_the_timers_of_its_steps(grid: Grid) -> None:
    grid.seat()
    scope = Scope("root", None, 2, HOUR, ((0, 0), (1, 0)))
    grid.job(plan(step(scope=0), step(scope=0), step(0, 1), scopes=[scope]), "j1", queue_timeout_ms=MINUTE)
    assert grid.fail(grid.take(), "stage") == "again"
    assert timers(grid) == []


def test_a_change_of_class_does_not_restart_the_timer(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b", inc="i2")
    grid.job(one(), "j1", queue_timeout_ms=MINUTE)
    grid.fail(grid.take("m.a"), "seat", pause_ms=MINUTE)
    before: float = grid.client.zscore(grid.keys("delays"), "queue_timeout:j1:0:0.1")
    grid.age("delays", "backoff:j1:0:m.a")
    grid.scripts.leave("m.b", "i2", "drain")
    grid.sweep()
    assert list(grid.classes()) == ["0/0|"]
    assert grid.client.zscore(grid.keys("delays"), "queue_timeout:j1:0:0.1") == before


def test_a_retried_stage_gets_a_new_timer(grid: Grid) -> None:
    grid.seat()
    given = plan(step(scope=0), scopes=[Scope("root", None, 3, MINUTE, ((0, 0),))])
    grid.job(given, "j1", queue_timeout_ms=1000)
    assert grid.fail(grid.take(), "stage") == "again"
    assert timers(grid) == []  # it waits for the delay of the Retry, and is not ready
    grid.wait_over()
    assert timers(grid) == ["queue_timeout:j1:0:1.1"]


def test_a_running_stage_does_not_time_out(grid: Grid) -> None:
    grid.seat()
    grid.job(wide(2), "j1", queue_timeout_ms=MINUTE)
    claim = grid.take()
    # As if the timer had been left behind.
    grid.client.zadd(grid.keys("delays"), {"queue_timeout:j1:0:0.0": 1})
    grid.sweep()
    assert grid.end("j1") is None
    assert grid.complete(claim)[0] == 1
    grid.client.zadd(grid.keys("delays"), {"queue_timeout:j1:0:0.1": 1})
    grid.sweep()
    assert grid.end("j1") is None


def test_a_stage_past_its_queue_timeout_is_not_claimed(grid: Grid) -> None:
    """No router has swept for a while."""
    grid.seat()
    grid.job(one(), "j1", queue_timeout_ms=MINUTE)
    grid.age("delays", "queue_timeout:j1:0:0.0")
    assert grid.claim() == "none"
    grid.sweep()
    assert error(grid, "j1").code == "job.queue_timeout"


def test_a_job_that_no_router_admits_expires(grid: Grid) -> None:
    assert grid.enqueue("j1", queue_timeout_ms=1000) == Accepted()
    assert timers(grid) == ["inbox_timeout:j1:0:0"]
    end_timers(grid)
    found = error(grid, "j1")
    assert (found.code, found.details["queue"], found.path) == ("job.queue_timeout", "gridq:router", "")
    assert grid.client.zrange(grid.keys("answers"), 0, -1) == [b"j1"]


def test_a_late_router_does_not_admit_an_expired_job(grid: Grid) -> None:
    grid.seat()
    grid.enqueue("j1", queue_timeout_ms=1000)
    grid.client.hset(grid.keys("submitted", "j1"), "submitted_at", 1)
    assert grid.admit(one(), "j1", deadline_ms=None, queue_timeout_ms=1000) == AlreadyKnown()
    end_timers(grid)
    assert error(grid, "j1").code == "job.queue_timeout"


def test_no_timer_is_left_when_the_job_ends(grid: Grid) -> None:
    grid.seat()
    grid.enqueue("j1", queue_timeout_ms=MINUTE)
    assert grid.admit(wide(5), "j1", deadline_ms=None, queue_timeout_ms=MINUTE) == Accepted()
    assert len(timers(grid)) == 5
    grid.take()
    assert len(timers(grid)) == 4
    grid.scripts.stop("j1", "cancelled", "{}")
    assert timers(grid) == []
    grid.enqueue("j2", queue_timeout_ms=MINUTE)
    grid.scripts.stop("j2", "cancelled", "{}")
    assert timers(grid) == []


def test_a_job_without_the_option_has_no_timer(grid: Grid) -> None:
    grid.job(wide(3), "j1")
    grid.enqueue("j2")
    assert timers(grid) == []
    assert not grid.client.exists(grid.keys("delays"))


def test_jobs_are_expired_in_batches(grid: Grid) -> None:
    for number in range(7):
        grid.job(one(), f"j{number}", queue_timeout_ms=MINUTE)
    for entry in timers(grid):
        grid.age("delays", entry)
    assert grid.sweep(5)[0]["expired"] == 5
    assert grid.sweep(5)[0]["expired"] == 2


@pytest.mark.parametrize("steps", [1, 200])
def test_the_deadline_error_names_the_unfinished_stage(grid: Grid, steps: int) -> None:
    grid.seat(concurrency=1)
    grid.job(wide(steps), "j1")
    grid.job(chain(2), "j2")
    grid.enqueue("j3", deadline_ms=5000)
    grid.take()
    for job in ("j1", "j2", "j3"):
        grid.age("deadlines", job)
    grid.sweep()
    running, waiting, queued = error(grid, "j1"), error(grid, "j2"), error(grid, "j3")
    assert {one.code for one in (running, waiting, queued)} == {"job.deadline"}
    assert (running.path, running.reason) == ("root", "it was running on m.a")
    assert (waiting.path, waiting.details["seconds"]) == ("root", HOUR / 1000)
    assert queued.reason == "no router had admitted it"
