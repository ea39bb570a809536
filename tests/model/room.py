"""Predict admissions to bounded queues from the queues' content before the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gridq.errors import QueueDropped
from gridq.graph.plan import Plan, Step
from gridq.jobs.record import round_up_cost
from gridq.store.replies import QueueLimitReached
from tests.unit.store.plans import Grid

Line = tuple[str, bool]
"""A queue, and those of its stages that a live seat could take if it were not busy (True), or the others."""

Bounds = dict[str, tuple[int, bool]]
"""By queue: the most stages that may wait in it, and whether batch jobs are dropped for interactive ones."""


class Room:
    """The bounded queues that a job of `agent` would enter, as they are now.

    `agents`: all that may have stages.
    """

    def __init__(
        self, grid: Grid, bounds: Bounds, given: Plan, agent: str, prio: int, agents: tuple[str, ...]
    ) -> None:
        self.grid = grid
        self.bounds = bounds
        self.prio = prio
        ready = [(self._queue(step), step) for step in given.steps if not step.after]
        is_parked = grid.client.hexists(grid.keys("parked_agents"), agent)
        self.needed = Counter(
            (queue, not is_parked and self._has_taker(queue, step.micro_dollars, ""))
            for queue, step in ready
            if queue in bounds
        )
        waiting = {queue: self._waiting(queue, agents) for queue, _ in self.needed}
        self.standing: Counter[Line] = Counter()
        self.batch: dict[Line, Counter[str]] = {line: Counter() for line in self.needed}
        for queue, stages in waiting.items():
            for job, batch, has_taker in stages:
                self.standing[queue, has_taker] += 1
                if batch and (queue, has_taker) in self.batch:
                    self.batch[queue, has_taker][job] += 1

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

    def _has_taker(self, queue: str, cost: int, excluded: str) -> bool:
        """Return whether a live seat could take a stage if it were not busy."""
        client, keys = self.grid.client, self.grid.keys
        names = excluded.split(",")
        only = [name[1:] for name in names if name.startswith("=")]
        for seat in map(bytes.decode, client.smembers(keys("serving", queue))):
            left = self.grid.left(seat)
            if seat not in names and only in ([], [seat]) and (left is None or left >= round_up_cost(cost)):
                return True
        return False

    def _waiting(self, queue: str, agents: tuple[str, ...]) -> list[tuple[str, bool, bool]]:
        """Return for each stage that waits in a queue its job, whether it is batch work, and whether a live
        seat could take it. The stages of jobs that have ended count, but their end makes no more room.
        """
        client, keys = self.grid.client, self.grid.keys
        found = []
        for cls in self.grid.classes(queue):
            priority, cost = cls.partition("|")[0].split("/")
            for agent in agents:
                # the agent is parked class by class, so others of its classes may still be served
                is_parked = client.sismember(keys("parked", agent), f"{queue} {cls}")
                for member in client.zrange(keys("waiting", queue, cls, agent), 0, -1):
                    job, _, step = member.decode().rpartition(":")
                    excluded = (client.hget(keys("job", job), f"excluded:{step}") or b"").decode()
                    has_taker = not is_parked and self._has_taker(queue, int(cost), excluded)
                    is_batch = priority != "0" and bool(client.exists(keys("job", job)))
                    found.append((job, is_batch, has_taker))
        return found

    def exceeds_bound(self, line: Line, gone: list[str]) -> bool:
        """Return whether the job would exceed the line's bound after the jobs in `gone` have left it."""
        left = self.standing[line] - sum(self.batch[line][job] for job in gone)
        return left + self.needed[line] > self.bounds[line[0]][0]

    def find_full_lines(self) -> set[Line]:
        """Return the lines for which the job must be refused."""
        found = set()
        for line, needed in self.needed.items():
            most, drops = self.bounds[line[0]]
            short = self.standing[line] + needed - most
            gives = drops and self.prio == 0 and needed <= most and sum(self.batch[line].values()) >= short
            if short > 0 and not gives:
                found.add(line)
        return found

    def check_refusal(self, reply: QueueLimitReached) -> None:
        """Check the refusal."""
        line = reply.queue, reply.has_seat
        assert line in self.find_full_lines()
        expected = (self.standing[line], self.bounds[line[0]][0], self.needed[line])
        assert (reply.pending, reply.limit, reply.needed) == expected

    def check_dropped_jobs(self, dropped: Sequence[str], agents: tuple[str, ...]) -> None:
        """Check the jobs dropped for an admitted one: no more than necessary, each with the right error."""
        assert len(set(dropped)) == len(dropped)
        for number, job in enumerate(dropped):
            where = [line for line in self.needed if self.batch[line][job]]
            assert any(self.exceeds_bound(line, dropped[:number]) for line in where), (
                f"{job} was dropped needlessly"
            )
            assert isinstance(self.grid.ended(job).to_error(), QueueDropped)
        for queue, has_taker in self.needed:
            lines = Counter(has_seat for _, _, has_seat in self._waiting(queue, agents))
            assert lines[has_taker] <= self.bounds[queue][0], f"{queue} exceeds its bound"
