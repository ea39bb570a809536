"""Predict admissions to bounded queues from the queues' content before the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gridq.errors import QueueDropped
from gridq.graph.plan import Plan, Step
from gridq.jobs.record import round_up_cost
from gridq.store.replies import QueueLimitReached
from tests.unit.store.plans import Grid

Bounds = dict[str, tuple[int, bool]]
"""By queue: the most stages that may wait in it, and whether batch jobs are dropped for interactive ones."""


class Room:
    """The bounded queues that a job would enter, as they are now. `agents`: all that may have stages."""

    def __init__(self, grid: Grid, bounds: Bounds, given: Plan, prio: int, agents: tuple[str, ...]) -> None:
        self.grid = grid
        self.bounds = bounds
        self.prio = prio
        ready = Counter(self._queue(step) for step in given.steps if not step.after)
        self.needed = {queue: count for queue, count in ready.items() if queue in bounds}
        self.standing = {queue: sum(grid.classes(queue).values()) for queue in self.needed}
        self.batch = {queue: self._batch(queue, agents) for queue in self.needed}

    def _queue(self, step: Step) -> str:
        """Return the queue that a step would enter.

        It is the first of its queues from which a seat can take it now, else the first with a live seat, else
        the first.
        """
        client, keys = self.grid.client, self.grid.keys
        served = []
        for queue in step.queues:
            left = [self.grid.left(seat.decode()) for seat in client.smembers(keys("serving", queue))]
            if any(each is None or each >= round_up_cost(step.micro_dollars) for each in left):
                return queue
            served += [queue] if left else []
        return served[0] if served else step.queue

    def _batch(self, queue: str, agents: tuple[str, ...]) -> Counter[str]:
        """Return the number of waiting stages of each batch job in the queue."""
        found: Counter[str] = Counter()
        for cls in self.grid.classes(queue):
            if not cls.startswith("0/"):
                for agent in agents:
                    key = self.grid.keys("waiting", queue, cls, agent)
                    members = [member.decode() for member in self.grid.client.zrange(key, 0, -1)]
                    found.update(member.rpartition(":")[0] for member in members)
        return found

    def exceeds_bound(self, queue: str, gone: list[str]) -> bool:
        """Return whether the job would exceed the queue's bound after the jobs in `gone` have left it."""
        left = self.standing[queue] - sum(self.batch[queue][job] for job in gone)
        return left + self.needed[queue] > self.bounds[queue][0]

    def find_full_queues(self) -> set[str]:
        """Return the queues for which the job must be refused."""
        found = set()
        for queue, needed in self.needed.items():
            most, drops = self.bounds[queue]
            short = self.standing[queue] + needed - most
            gives = drops and self.prio == 0 and needed <= most and sum(self.batch[queue].values()) >= short
            if short > 0 and not gives:
                found.add(queue)
        return found

    def check_refusal(self, reply: QueueLimitReached) -> None:
        """Check the refusal."""
        queue = reply.queue
        assert queue in self.find_full_queues()
        expected = (self.standing[queue], self.bounds[queue][0], self.needed[queue])
        assert (reply.pending, reply.limit, reply.needed) == expected

    def check_dropped_jobs(self, dropped: Sequence[str]) -> None:
        """Check the jobs dropped for an admitted one: no more than necessary, each with the right error."""
        assert len(set(dropped)) == len(dropped)
        for number, job in enumerate(dropped):
            where = [queue for queue in self.needed if self.batch[queue][job]]
            assert any(self.exceeds_bound(queue, dropped[:number]) for queue in where), (
                f"{job} was dropped needlessly"
            )
            assert isinstance(self.grid.ended(job).to_error(), QueueDropped)
        for queue in self.needed:
            assert sum(self.grid.classes(queue).values()) <= self.bounds[queue][0], (
                f"{queue} exceeds its bound"
            )
