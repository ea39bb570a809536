"""sweep.lua: leases, deadlines and entries that are due."""

from __future__ import annotations

import pytest

from gridq.protocol.queue_names import PURE, ROUTER
from gridq.protocol.states import JobState
from gridq.store.replies import AlreadyKnown, Loss
from tests.unit.store.plans import ANY, HOUR, Grid, chain, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _sweep_after(grid: Grid, ms: int) -> dict[str, int]:
    """Sweep `ms` after the last sweep, and return what was found."""
    grid.client.set(grid.keys("last_sweep"), grid.now() - ms, px=HOUR)
    return grid.scripts.sweep()[0]


# -- leases and seats --------------------------------------------------------------------------------------


def test_a_dead_seat_loses_its_leases_and_slots(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2)
    grid.seat("m.b")
    grid.job(wide(2), "j1")
    grid.take("m.a")
    grid.age("seats", "m.a")
    found = grid.sweep()[0]
    assert found["seats"] == 1
    assert grid.held("m.a") == {}
    assert grid.client.hget(grid.keys("concurrency"), ANY) == b"1"
    assert grid.client.smembers(grid.keys("serving", ANY)) == {b"m.b"}
    assert not grid.client.exists(grid.keys.queue("seat:m.a"))
    assert grid.claim("m.a", slot="1") == "gone"
    assert grid.take("m.b").job == "j1"
    assert grid.client.hget(grid.keys("attempts_lost"), "count") == b"1"


def test_a_lost_stage_goes_to_other_seats_first(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(one())
    grid.lapse(grid.take("m.a"))
    grid.sweep()
    assert grid.claim("m.a") == "none"
    grid.wait_over()
    grid.take("m.a")


def test_after_a_gap_nothing_expires_for_one_lease(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.age("leases", claim.lease)
    grid.age("seats", "m.a")
    longest = grid.config.lease_ms - grid.config.renew_ms
    found = _sweep_after(grid, longest + 50)
    assert (found["grace"], found["died"], found["seats"]) == (2, 0, 0)
    until: float = grid.client.zscore(grid.keys("leases"), claim.lease)
    assert until - grid.now() > longest
    assert grid.sweep()[0]["died"] == 0


def test_a_gap_as_long_as_a_missed_renewal_gives_a_short_grace(grid: Grid) -> None:
    """The server was away for two renewals, as in a fail-over: the next one comes after the lease ends."""
    grid.seat()
    grid.job(one())
    lease = grid.take().lease
    longest = grid.config.lease_ms - grid.config.renew_ms
    now = grid.now()
    for name, member in (("leases", lease), ("seats", "m.a")):
        grid.client.zadd(grid.keys(name), {member: now - 50})
    found = _sweep_after(grid, longest - 100)
    assert (found["grace"], found["died"], found["seats"]) == (2, 0, 0)
    for name, member in (("leases", lease), ("seats", "m.a")):
        until: float = grid.client.zscore(grid.keys(name), member)
        assert longest / 4 < until - now < longest, "until the next renewal, no longer"
    assert grid.client.hget(grid.keys("concurrency"), ANY) == b"1"


def test_late_sweeps_still_find_dead_seats(grid: Grid) -> None:
    grid.seat()
    late = (grid.config.lease_ms - grid.config.renew_ms) * 0.75
    gaps = 0
    while not _sweep_after(grid, int(late))["seats"]:
        gaps += 1
        assert gaps * late < 4 * grid.config.lease_ms
        until: float = grid.client.zscore(grid.keys("seats"), "m.a")
        grid.client.zadd(grid.keys("seats"), {"m.a": until - late})  # as if the time had passed
    assert gaps


def test_a_short_pause_is_not_a_gap(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    grid.age("leases", grid.take().lease)
    found = _sweep_after(grid, (grid.config.lease_ms - grid.config.renew_ms) // 2 - 100)
    assert (found["grace"], found["died"]) == (0, 1)


def test_a_clock_set_back_counts_as_a_gap(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.client.zadd(grid.keys("leases"), {claim.lease: grid.now() + HOUR})
    assert _sweep_after(grid, -60_000)["grace"] == 2
    until: float = grid.client.zscore(grid.keys("leases"), claim.lease)
    assert until - grid.now() <= grid.config.lease_ms


def test_the_first_sweep_finds_nothing(grid: Grid) -> None:
    assert set(grid.scripts.sweep()[0].values()) == {0}


# -- deadlines, inbox, answers, wake-ups ---------------------------------------------------------------------


def test_running_and_queued_jobs_expire_at_their_deadlines(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(2), "running", celery=True)
    claim = grid.take()
    grid.enqueue("queued")
    for job in ("running", "queued"):
        grid.age("deadlines", job)
    assert grid.sweep()[0]["expired"] == 2
    for job in ("running", "queued"):
        end = grid.ended(job)
        assert end.state is JobState.EXPIRED
        error = end.to_error()
        assert error is not None
        assert error.code == "job.deadline"
    assert grid.held() == {}
    assert not grid.client.exists(
        grid.keys("inbox"), grid.keys("submitted", "queued"), grid.keys("deadlines")
    )
    assert grid.complete(claim)[0] == -1
    assert grid.sweep()[0]["expired"] == 0


def test_the_inbox_sends_wake_ups_until_admission(grid: Grid) -> None:
    grid.seat("r.router", PURE)
    grid.enqueue("j1")
    assert grid.sweep()[0]["woken"] == 0  # not before its own message had time
    for times in (1, 2):
        grid.age("inbox", "j1")
        assert grid.sweep()[0]["woken"] == 1
        assert grid.wake_ups(ROUTER) == times
    assert grid.sweep()[0]["woken"] == 0
    text: bytes = grid.client.lindex(grid.keys.queue(ROUTER), 0)
    assert b'"id": "j1"' in text
    grid.admit(one(), "j1", deadline_ms=None)
    assert not grid.client.exists(grid.keys("inbox"))


def test_the_routers_queue_does_not_fill_up(grid: Grid) -> None:
    for number in range(20):
        grid.enqueue(f"j{number}")
        grid.age("inbox", f"j{number}")
    assert grid.sweep(8).found["woken"] == 8
    assert grid.sweep(8).found["woken"] == 0
    assert grid.wake_ups(ROUTER) == 8
    grid.clear(ROUTER)  # routers have come to them: the next are rung for
    assert grid.sweep(200).found["woken"] == 12


def test_jobs_in_the_inbox_wait_while_the_server_is_full(grid: Grid) -> None:
    grid.enqueue("j1")
    grid.age("inbox", "j1")
    grid.client.set(grid.keys("memory_full"), "9 10", px=60_000)
    assert grid.sweep().found["woken"] == 0
    grid.client.delete(grid.keys("memory_full"))
    assert grid.sweep().found["woken"] == 1


def test_due_answers_are_returned_until_they_are_written(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", celery=True)
    assert grid.done(grid.take()) == "celery"
    assert grid.sweep()[1] == []  # whoever ended it writes it first
    for _ in range(2):
        grid.age("answers", "j1")
        assert grid.sweep()[1] == ["j1"]
        assert grid.sweep()[1] == []
    grid.client.zrem(grid.keys("answers"), "j1")
    assert grid.sweep()[1] == []


def test_lost_wake_ups_of_pending_stages_are_sent_again(grid: Grid) -> None:
    grid.seat("m.a")
    grid.job(one())
    grid.clear("seat:m.a", ANY)
    grid.sweep()
    assert grid.wake_ups("seat:m.a") + grid.wake_ups(ANY) == 1
    for _ in range(5):
        grid.sweep()
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups(ANY)) == (0, 1)


def test_a_queue_without_work_is_forgotten(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    grid.done(grid.take())
    grid.clear("seat:m.a", ANY)
    grid.sweep()
    assert not grid.client.exists(grid.keys("queues"))


def test_the_job_list_keeps_a_job_until_its_result_expires(grid: Grid) -> None:
    grid.seat()
    jobs = grid.keys("jobs")
    grid.enqueue("j1")
    submitted = grid.client.zscore(jobs, "j1")
    grid.job(one(), "j1", deadline_ms=None, name="briefing")
    assert grid.client.zscore(jobs, "j1") == submitted  # admitted later, submitted when it was
    grid.done(grid.take())
    about = grid.client.hgetall(grid.keys("summary", "j1"))
    assert (about[b"name"], about[b"agent"], about[b"state"], about[b"steps"]) == (
        b"briefing",
        b"ann",
        b"done",
        b"1",
    )
    assert 0 < grid.client.pttl(grid.keys("summary", "j1")) <= HOUR
    grid.sweep()
    assert grid.client.zcard(jobs) == 1
    grid.age("ended_jobs", "j1")
    grid.sweep()
    assert not grid.client.exists(jobs, grid.keys("ended_jobs"))


def test_a_job_whose_keys_expired_leaves_the_job_list(grid: Grid) -> None:
    """No router looked for longer than its deadline."""
    grid.seat()
    grid.job(one(), "j1")
    grid.client.delete(grid.keys("job", "j1"))
    grid.age("deadlines", "j1")
    grid.sweep()
    assert not grid.client.exists(grid.keys("jobs"))
    assert grid.claim() == "none"


def test_stages_of_a_job_whose_keys_expired_are_removed(grid: Grid) -> None:
    """No live seat would find them otherwise."""
    for number in range(3):
        grid.job(wide(4), f"j{number}")
        grid.client.delete(grid.keys("job", f"j{number}"))
        grid.age("deadlines", f"j{number}")
    grid.job(one(), "there")
    assert grid.sweep()
    assert grid.classes() == {"0/0|": 1}
    assert grid.pending() == ["there:0"]
    grid.clear(ANY)


def test_a_dead_incarnation_leaves_only_its_seat_record(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2)
    grid.scripts.renew("m.a", "i1", [], [ANY])
    grid.job(wide(2))
    grid.take()
    grid.age("seats", "m.a")
    grid.sweep()
    assert not grid.client.exists(grid.keys.queue("seat:m.a"))
    assert {name for name in grid.own() if name.endswith(":m.a")} == {"seat:m.a"}
    sets = [name for name in grid.own() if grid.client.type(grid.keys.own + name) == b"zset"]
    assert [name for name in sets if grid.client.zscore(grid.keys.own + name, "m.a") is not None] == [
        "gone_seats"
    ]
    assert 0 < grid.client.ttl(grid.keys("gone_seats")) <= 600


def test_a_submission_whose_keys_expired_leaves_the_inbox(grid: Grid) -> None:
    """Otherwise wake-ups would be sent for it forever."""
    grid.enqueue("j1")
    grid.client.delete(grid.keys("submitted", "j1"))
    grid.age("deadlines", "j1")
    grid.sweep()
    assert not grid.client.exists(grid.keys("inbox"), grid.keys("jobs"))


def test_a_loss_names_worker_and_path(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", name="briefing")
    claim = grid.take()
    grid.age("leases", claim.lease)
    assert grid.sweep()[2] == [Loss(claim.lease, "m.a", "root", "briefing", "again")]
    assert grid.sweep()[2] == []


def test_broken_entries_do_not_stop_the_sweep(grid: Grid) -> None:
    """Entries that no script leaves: without their keys, with some of them, with keys of another type."""
    client, keys = grid.client, grid.keys
    grid.seat()
    half = {"name": "half", "agent": "ann", "steps": 1, "unfinished": 1, "submitted_at": 1, "deadline": 2}
    client.hset(keys("job", "half"), mapping=half)
    client.set(keys("seat", "m.none"), "text")
    client.set(keys("classes", "zz:none"), "text")
    for name in (keys("job", "half"), keys("seat", "m.none"), keys("classes", "zz:none")):
        client.pexpire(name, HOUR)
    client.sadd(keys("queues"), "zz:none")
    entries = {
        "seats": "m.none",
        "leases": "none",
        "delays": "none",
        "quarantine": "none",
        "deadlines": "half",
    }
    for name, entry in entries.items():
        client.zadd(keys(name), {entry: 0})
    lost, late = grid.job(one(), "lost"), grid.job(one(), "late")
    grid.age("leases", grid.take().lease)
    grid.age("deadlines", late)
    swept = grid.sweep()
    assert (swept.found["died"], swept.found["expired"]) == (1, 1)
    assert [loss.lease.split(":")[0] for loss in swept.losses] == [lost]
    assert {entry.kind: entry.entry for entry in swept.broken} == entries | {"queues": "zz:none"}
    assert all(entry.fault for entry in swept.broken)
    assert [entry.kind for entry in grid.sweep().broken] == ["queues"]
    client.unlink(keys("job", "half"), keys("seat", "m.none"), keys("classes", "zz:none"))
    client.srem(keys("queues"), "zz:none")
    assert grid.sweep().broken == []


def test_a_job_past_its_deadline_is_not_admitted(grid: Grid) -> None:
    """Its keys would expire before its stages could run."""
    grid.seat()
    grid.enqueue("j1")
    grid.client.hset(grid.keys("submitted", "j1"), "deadline", 1)
    grid.age("deadlines", "j1")
    assert grid.admit(one(), "j1", deadline_ms=None) == AlreadyKnown()
    assert grid.sweep().found["expired"] == 1
    assert grid.client.exists(grid.keys("result", "j1"))
