"""Make every transition that the tables of gridq.protocol.states allow, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gridq.app import app
from gridq.messaging import wake_ups
from gridq.protocol.queue_names import PURE
from gridq.protocol.seat_states import Unavailable, format_unavailable
from gridq.store.replies import Accepted, Claim
from gridq.views.audit import find_breaches
from tests.conftest import GridEnv
from tests.model.trees import ONE, Builder, Tree
from tests.model.watcher import ALL_TRANSITIONS, Watcher
from tests.unit.store.limits import limit
from tests.unit.store.plans import HOUR, Grid, chain, one, plan, step

MINUTE = 60_000

STOPS = ("fail", "sweep", "leave", "register")
"""Scripts that can end an attempt without an output."""


class Walk(Grid):
    """A grid on which a stage may be lost twice, with seats that come as they are needed."""

    def __init__(self, env: GridEnv) -> None:
        super().__init__(env.client, env.settings.model_copy(update={"max_losses": 2}))
        wake_ups.write_templates(app, self.client, self.keys)
        self.watcher = Watcher(self)
        self.seats = itertools.count(1)
        self._run, self.scripts.run = self.scripts.run, self.run  # type: ignore[method-assign]

    def run(self, script: str, *args: Any) -> Any:
        reply = self._run(script, *args)
        self.watcher.after(script, args, reply)
        return reply

    def by_another(self, queue: str = "bench:any") -> Claim:
        """Claim a stage of a queue for a new seat."""
        seat = f"m.s{next(self.seats)}"
        self.seat(seat, queue)
        return self.take(seat)

    def deadly(self, queue: str) -> None:
        """Let a stage kill two children."""
        for _ in range(2):
            self.fail(self.by_another(queue), "died")

    def end_by(self, how: str, claim: Claim, kind: str = "stage") -> None:
        """End an attempt by one of STOPS."""
        seat = self.holders[claim.lease][0]
        if how == "fail":
            self.fail(claim, kind)
        elif how == "sweep":
            self.lapse(claim)
        elif how == "leave":
            self.scripts.leave(seat, "i1", "go")
        else:
            self.seat(seat, "bench:none", inc="i2")


@pytest.fixture
def walk(grid_env: GridEnv) -> Walk:
    return Walk(grid_env)


def leaf(name: str) -> Tree:
    return ("stage", f"bench:{name}", 0)


def retried(walk: Walk, how: str) -> None:
    """Restart a Retry whose stages are in every state there is."""
    after = ("par", [("if", leaf("arm"), leaf("other")), leaf("ready"), leaf("deadly2"), leaf("failing")])
    tree = ("retry", 3, 0, ("par", [
        ("seq", [leaf("done"), after]), leaf("running"), leaf("lapsed"), leaf("deadly"),
        ("retry", 2, HOUR, leaf("delayed")),
    ]))  # fmt: skip
    job = walk.job(Builder(tree).plan())
    for queue in ("bench:done", ONE, "bench:arm"):
        walk.done(walk.by_another(queue), b"true")
    walk.by_another("bench:running")
    walk.lapse(walk.by_another("bench:lapsed"))
    walk.deadly("bench:deadly")
    walk.deadly("bench:deadly2")
    walk.fail(walk.by_another("bench:delayed"), "stage")
    if how != "fail":
        walk.lapse(walk.by_another("bench:failing"))
    walk.end_by(how, walk.by_another("bench:failing"))
    assert walk.field(job, "tries:0") == "1"
    assert walk.scripts.stop(job, "cancelled", "{}") == "plain"


def lost_for_good(walk: Walk, how: str) -> None:
    job = walk.job(one())
    walk.end_by(how, walk.by_another(), "lost")
    walk.end_by(how, walk.by_another(), "lost")
    assert walk.ended(job).state == "failed"


def inbox(walk: Walk) -> None:
    for job in ("q1", "q2", "q3", "q4"):
        walk.enqueue(job)
    walk.admit(one(), "q1", deadline_ms=None)
    walk.scripts.stop("q2", "failed", "{}", inbox_only=True)
    walk.scripts.stop("q3", "cancelled", "{}")
    walk.age("deadlines", "q4")
    walk.age("deadlines", "q1")
    walk.sweep()


def late(walk: Walk) -> None:
    """Report from attempts with expired leases, which counts until the stage is claimed again."""
    for end in (
        walk.done, lambda claim: walk.fail(claim, "stage"),
        lambda claim: walk.fail(claim, "back"), lambda claim: walk.by_another(),
    ):  # fmt: skip
        job = walk.job(one())
        claim = walk.by_another()
        walk.lapse(claim)
        end(claim)
        walk.scripts.stop(job, "cancelled", "{}")
    job = walk.job(one())
    walk.fail(walk.by_another(), "died")
    claim = walk.by_another()
    walk.lapse(claim)
    assert walk.fail(claim, "died") == "quarantined"
    walk.scripts.stop(job, "cancelled", "{}")
    job = walk.job(one())
    for _ in range(2):
        walk.scripts.leave(walk.holders[walk.by_another().lease][0], "i1", "died")
    walk.scripts.stop(job, "cancelled", "{}")
    job = walk.job(one())
    walk.lapse(walk.by_another())
    walk.scripts.stop(job, "cancelled", "{}")


def going_on(walk: Walk) -> None:
    """Let a slot that completes a stage take the next one: a pending, a pure or a lapsed one."""
    walk.job(chain(2))
    _, _, second = walk.complete(walk.by_another(), go_on=True)
    assert isinstance(second, Claim)
    walk.done(second)
    walk.job(plan(step(), step(0, queue=PURE)))
    _, _, pure = walk.complete(walk.by_another(), go_on=True)
    assert isinstance(pure, Claim)
    walk.fail(pure, "back")
    walk.done(walk.by_another(PURE))
    walk.job(one(queue="bench:x"))
    walk.lapse(walk.by_another("bench:x"))
    walk.job(one(queue="bench:y"))
    first = walk.by_another("bench:y")
    walk.seat(walk.holders[first.lease][0], "bench:y", "bench:x")  # it serves that queue too from now on
    _, _, again = walk.complete(first, go_on=True)
    assert isinstance(again, Claim)
    walk.done(again)


def quarantined(walk: Walk) -> None:
    """Release a stage, drop it, or let its time end, while another runs and a third has lapsed."""
    for how in ("release", "drop", "nothing"):
        job = walk.job(plan(*(step(queue=f"bench:{queue}") for queue in (how, "beside", "late"))))
        walk.deadly(f"bench:{how}")
        walk.by_another("bench:beside")
        walk.lapse(walk.by_another("bench:late"))
        if how == "nothing":
            walk.age("quarantine", f"{job}:0")
            walk.sweep()
        else:
            walk.scripts.quarantine(how, job, 0, "op")
        walk.scripts.stop(job, "cancelled", "{}")


def too_dear(walk: Walk) -> None:
    """Let a stage use more than the budget of its job while another runs."""
    job = walk.job(plan(step(), step(queue="bench:beside")))
    walk.client.hset(walk.keys("job", job), "budget", 5)
    walk.by_another("bench:beside")
    walk.complete(walk.by_another(), used=6)
    assert walk.ended(job).state == "failed"


def giving_way(walk: Walk) -> None:
    """Drop a batch job with a running and a lapsed stage for an interactive job."""
    limit(walk, f'[queues."{ONE}"]\nmax_pending = 2\npolicy = "drop-oldest-batch"')
    job = walk.job(plan(step(queue="bench:p"), step(queue="bench:q"), step(queue=ONE), step(0, 1, 2)), prio=1)
    walk.by_another("bench:p")
    walk.lapse(walk.by_another("bench:q"))
    walk.job(one(queue=ONE), "i1")
    assert walk.admit(one(queue=ONE), "i2") == Accepted((job,))
    walk.scripts.apply_limits("", "", {})
    for other in ("i1", "i2"):
        walk.scripts.stop(other, "cancelled", "{}")


def unavailable(walk: Walk) -> None:
    """Let a stage wait for a seat whose key is refused."""
    queue = "bench:unavailable"
    job = walk.job(one(queue=queue))
    walk.client.hincrby(walk.keys("job", job), "ready_at:0", -MINUTE)
    walk.seat("m.unavailable", queue)
    now = walk.now() / 1000
    why = Unavailable("key_refused", "", now - MINUTE / 1000, now + HOUR / 1000)
    walk.scripts.leave("m.unavailable", "i1", "drain", format_unavailable([((queue,), why)]))
    walk.sweep()
    assert walk.ended(job).state == "failed"


def test_each_transition_of_the_tables_is_made(walk: Walk) -> None:
    scenes: list[Callable[[Walk], None]] = [
        inbox,
        late,
        going_on,
        quarantined,
        too_dear,
        giving_way,
        unavailable,
    ]
    for scene in scenes:
        scene(walk)
        assert not find_breaches(walk.client, walk.keys)
    for how in STOPS:
        retried(walk, how)
        lost_for_good(walk, how)
        assert not find_breaches(walk.client, walk.keys)
    missing = sorted(
        f"{what}: {before} -> {after} by {by}"
        for what, before, after, by in ALL_TRANSITIONS - walk.watcher.transitions
    )
    assert not missing, "\n".join(missing)
