"""The first half of the model: a grid, its accounts, and the actions of submitters, routers and operators."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from redis.exceptions import ConnectionError

from gridq.app import app
from gridq.messaging import wake_ups
from gridq.protocol.states import JobState, StageState
from gridq.store.replies import Accepted, AlreadyKnown, OtherBody, QueueLimitReached, QuotaReached, SameJob
from tests.conftest import GridEnv
from tests.model.room import Bounds, Room
from tests.model.shadow import TEAM, Shadow
from tests.model.trees import ONE, TWO, Builder, Tree, trees
from tests.model.watcher import Watcher
from tests.unit.store.limits import limit
from tests.unit.store.plans import HOUR, Grid

T = TypeVar("T", bound=Callable[..., None])

AGAIN = (
    "claim", "complete", "fail", "emit", "renew", "register", "leave", "stop", "enqueue", "admit",
    "quarantine", "take_slot",
)  # fmt: skip
"""Scripts whose calls redis-py repeats if the reply was lost."""

AGENTS = ("ann", "bob")
FOREVER = 1_000_000
agents = st.sampled_from(AGENTS)
amounts = st.sampled_from([None, 0, 5_000, 20_000, 1_000_000])
bounds = st.dictionaries(st.sampled_from([ONE, TWO]), st.tuples(st.integers(0, 4), st.booleans()), max_size=2)
timeouts = st.sampled_from([None, None, None, HOUR])
keys = st.sampled_from(["", "", "", "one", "two"])
picks = st.integers(0, 2**32).map(random.Random)
bodies = st.sampled_from(["b1", "b1", "b2"])


def act(weight: int, when: Callable[[Any], object] = lambda self: True, **given: Any) -> Callable[[T], T]:
    """Mark a method as an action with a relative weight, a condition and strategies for its arguments."""

    def mark(method: T) -> T:
        method.act = weight, when, given  # type: ignore[attr-defined]
        return method

    return mark


class Submitting(RuleBasedStateMachine):
    """One grid and a few jobs. `run` wraps every script call and checks its transitions and charges."""

    def __init__(self, env: GridEnv, number: int) -> None:
        super().__init__()
        config = env.settings.model_copy(
            update={"prefix": f"{env.prefix}{number}.", "max_losses": 3, "lease_ms": HOUR}
        )
        self.grid = Grid(env.client, config)
        wake_ups.write_templates(app, self.grid.client, self.grid.keys)
        self.watcher, self.shadow = Watcher(self.grid), Shadow(self.grid)
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []
        self._run, self.grid.scripts.run = self.grid.scripts.run, self.run  # type: ignore[method-assign]
        self.further_calls = FOREVER
        self.is_sweeping = False
        self.numbers = itertools.count(1)
        self.over: set[str] = set()
        self.bounds: Bounds = {}
        marked = {name: getattr(getattr(type(self), name), "act", None) for name in dir(type(self))}
        self.acts: dict[str, Any] = {name: about for name, about in marked.items() if about}

    @rule(data=st.data())
    def anything(self, data: st.DataObject) -> None:
        """Run one of the actions, if its condition holds.

        With a rule for each action, Hypothesis would weigh them equally and leave some out in each run. The
        draws do not depend on the server's replies, so that a run can be repeated.
        """
        name = data.draw(
            st.sampled_from([name for name, about in self.acts.items() for _ in range(about[0])])
        )
        _, when, strategies = self.acts[name]
        given = {argument: data.draw(strategy, argument) for argument, strategy in strategies.items()}
        if when(self):
            getattr(self, name)(**given)

    def run(self, script: str, *args: Any) -> Any:
        if script != "advance":
            self.is_sweeping = script == "sweep"
        elif not self.is_sweeping:  # what a router calls after its sweep stands for those that died
            self.further_calls -= 1
            if self.further_calls < 0:
                raise ConnectionError("the caller has died before this call")
        reply = self._run(script, *args)
        self.watcher.after(script, args, reply)
        self.shadow.after(script, args, reply)
        for job, state in self.watcher.jobs.items():
            if state.is_final and job not in self.over:
                self.over.add(job)
                self.shadow.ended(job)
        if script in AGAIN:
            self.calls.append((script, args, reply))
        return reply

    # -- submitters and routers ------------------------------------------------------------------------------

    @act(
        4, lambda self: len(self.live()) < 4, tree=trees, agent=agents, prio=st.integers(0, 1),
        celery=st.booleans(), stream=st.booleans(), timeout=timeouts, key=keys, body=bodies,
    )  # fmt: skip
    def admit(
        self, tree: Tree, agent: str, prio: int, celery: bool, stream: bool, timeout: int | None, key: str,
        body: str,
    ) -> None:  # fmt: skip
        about = {"idempotency": f"{agent}:{key}", "body": body} if key else {}
        job = f"j{next(self.numbers)}"
        self.admitted(
            tree, job, agent, prio=prio, celery=celery, stream=stream, queue_timeout_ms=timeout, **about
        )

    def admitted(self, tree: Tree, job: str, agent: str, **options: Any) -> bool:
        plan = Builder(tree).plan()
        cost = sum(step.micro_dollars for step in plan.steps)
        key, body = options.get("idempotency", ""), options.get("body", "")
        if key in self.shadow.keys:
            first, other = self.shadow.keys[key]
            expected = SameJob(first) if other == body else OtherBody(first)
            assert self.grid.admit(plan, job, agent=agent, **options) == expected
            return False
        room = Room(self.grid, self.bounds, plan, agent, options.get("prio", 0), AGENTS)
        full = room.find_full_lines()
        may = not full and self.shadow.is_allowed(agent, cost)
        if may:  # before the call, because it compares the accounts
            self.shadow.admitted(job, agent, cost, celery=options.get("celery", False), key=key, body=body)
        reply = self.grid.admit(plan, job, agent=agent, **options)
        assert isinstance(reply, QueueLimitReached if full else Accepted if may else QuotaReached)
        if isinstance(reply, QueueLimitReached):
            room.check_refusal(reply)
        if isinstance(reply, Accepted):
            room.check_dropped_jobs(reply.dropped_jobs, AGENTS)
            assert self.grid.admit(plan, job, agent=agent, **options) == AlreadyKnown()
        return may

    @act(
        2, pick=picks, what=st.sampled_from(["enqueue", "take in", "stop", "answer"]), tree=trees,
        expire=st.booleans(), agent=agents, timeout=timeouts, key=keys, body=bodies,
    )  # fmt: skip
    def other(
        self, pick: random.Random, what: str, tree: Tree, expire: bool, agent: str, timeout: int | None,
        key: str, body: str,
    ) -> None:  # fmt: skip
        """Run one of the rarer actions."""
        if what == "take in" and self.queued() and len(self.live()) < 4:
            self.take_in(pick.choice(self.queued()), tree)
        elif what == "stop" and (self.live() or self.queued()):
            self.stop(pick.choice([*self.live(), *self.queued()]), expire=expire)
        elif what == "answer" and self.shadow.unanswered:
            self.answer(pick.choice(sorted(self.shadow.unanswered)))
        elif what == "enqueue":
            self.enqueue(agent, timeout, key, body)

    def enqueue(self, agent: str, timeout: int | None, key: str, body: str) -> None:
        name = f"q{next(self.numbers)}"
        about = {"idempotency": f"{agent}:{key}", "body": body} if key else {}
        known = self.shadow.keys.get(about.get("idempotency", ""))
        reply = self.grid.enqueue(name, agent=agent, queue_timeout_ms=timeout, **about)
        if known is not None:
            first, other = known
            assert reply == (SameJob(first) if other == body else OtherBody(first))
            if other == body:  # each caller gets an answer, even if the job has ended
                self.shadow.celery.add(first)
                if first in self.over:
                    self.shadow.unanswered.add(first)
            return
        assert reply == Accepted()
        self.shadow.celery.add(name)
        if key:
            self.shadow.keys[about["idempotency"]] = name, body
        assert self.grid.enqueue(name, agent=agent, queue_timeout_ms=timeout, **about) == AlreadyKnown()

    def take_in(self, job: str, tree: Tree) -> None:
        """A router admits or refuses a job from the inbox."""
        agent = self.grid.client.hget(self.grid.keys("submitted", job), "agent").decode()
        if not self.admitted(tree, job, agent, deadline_ms=None):
            assert self.grid.scripts.stop(job, "failed", "{}", inbox_only=True) == "celery"
            self.shadow.keys = {key: of for key, of in self.shadow.keys.items() if of[0] != job}

    def stop(self, job: str, *, expire: bool) -> None:
        if expire:
            self.grid.age("deadlines", job)
            self.grid.sweep()
        else:
            assert self.grid.scripts.stop(job, "cancelled", "{}") in ("plain", "celery")
            assert self.grid.scripts.stop(job, "cancelled", "{}") == "over"

    def answer(self, job: str) -> None:
        """The answer is written to Celery's backend."""
        assert self.grid.client.zrem(self.grid.keys("answers"), job)
        self.shadow.unanswered.remove(job)

    @act(
        3, lambda self: len(self.live()) < 4, most=st.integers(1, 3), drops=st.booleans(),
        prios=st.lists(st.integers(0, 1), min_size=3, max_size=5), agent=agents, celery=st.booleans(),
    )  # fmt: skip
    def crowd(self, most: int, drops: bool, prios: list[int], agent: str, celery: bool) -> None:
        """A queue is bounded, and more jobs are submitted than fit."""
        self.limit(None, None, {ONE: (most, drops)}, lifted=False)
        for prio in sorted(prios, reverse=drops):  # batch work first
            tree = ("stage", ONE, 0)
            self.admitted(tree, f"j{next(self.numbers)}", agent, prio=prio, celery=celery)

    @act(2, calls=st.sampled_from([0, 1, 2, FOREVER, FOREVER]))
    def die_later(self, calls: int) -> None:
        """From now on callers die after so many further calls, and leave the rest to others."""
        self.further_calls = calls

    # -- operators -------------------------------------------------------------------------------------------

    @act(2, ann=amounts, team=amounts, bounds=bounds, lifted=st.booleans())
    def limit(self, ann: int | None, team: int | None, bounds: Bounds, lifted: bool) -> None:
        """The limits are replaced, or all are removed."""
        self.shadow.limits = None if lifted else {"ann": ann, "bob": None, TEAM: team}
        self.bounds = {} if lifted else bounds
        if lifted:
            self.grid.scripts.apply_limits("", "", {})
            return
        dollars = {name: '"none"' if n is None else n / 1_000_000 for name, n in self.shadow.limits.items()}
        text = f"[teams.{TEAM}]\nmonthly_dollars = {dollars[TEAM]}\n"
        for name in AGENTS:
            text += f'[agents.{name}]\nteam = "{TEAM}"\nmonthly_dollars = {dollars[name]}\n'
        for queue, (most, drops) in bounds.items():
            policy = "drop-oldest-batch" if drops else "reject"
            text += f'[queues."{queue}"]\nmax_pending = {most}\npolicy = "{policy}"\n'
        limit(self.grid, text)

    @act(3, lambda self: self.isolated(), pick=picks, verb=st.sampled_from(["release", "drop", "nothing"]))
    def quarantine(self, pick: random.Random, verb: str) -> None:
        job, step = pick.choice(self.isolated())
        if verb == "nothing":
            self.grid.age("quarantine", f"{job}:{step}")
            self.grid.sweep()
            assert self.watcher.jobs[job] is JobState.FAILED
            return
        replies = [self.grid.scripts.quarantine(verb, job, int(step), "op") for _ in range(2)]
        if verb == "release":
            assert replies == ["released", "before"]
        else:
            assert replies == ["celery" if job in self.shadow.celery else "plain", "over"]

    # -- what is known ---------------------------------------------------------------------------------------

    def live(self) -> list[str]:
        return [job for job, state in self.watcher.jobs.items() if state is JobState.RUNNING]

    def queued(self) -> list[str]:
        return [job for job, state in self.watcher.jobs.items() if state is JobState.QUEUED]

    def isolated(self) -> list[tuple[str, str]]:
        return [at for at, state in self.watcher.stages.items() if state is StageState.QUARANTINED]
