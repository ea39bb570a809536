"""Where a job stands: each step's state and seat, read from the job's own keys, never written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gridq.graph.plan import load_step
from gridq.states import JobState, StageState
from gridq.store.connection import translated

if TYPE_CHECKING:
    from gridq.client import Client

MAX_STEPS = 1000
"""Of a larger plan only the counts are read."""


@dataclass(slots=True)
class StepView:
    """One step: where it stands in the graph, its stages' names, its state.

    Several names: pure stages that run as one. `seat` is who runs it, in the form `cpu@machine`; `queue` is
    where it waits while it is ready.
    """

    path: str
    stages: tuple[str, ...]
    queue: str
    state: StageState = StageState.WAITING
    seat: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one instant. `done` and `of` count stages; steps, where the plan is too large to be read."""

    state: JobState | None
    done: int = 0
    of: int = 0
    steps: list[StepView] = field(default_factory=list)

    def having(self, state: StageState) -> list[StepView]:
        return [step for step in self.steps if step.state is state and step.stages]


class Progress:
    """Reads one job again and again; its plan is read once."""

    def __init__(self, client: Client, job: str) -> None:
        self._client = client
        self._job = job
        self._count = 0
        self._steps: list[StepView] = []

    def read(self) -> JobView:
        """The job now; without steps before it is admitted and after it has ended. BrokerError."""
        redis, keys, job = self._client.redis, self._client.keys, self._job
        with translated(self._client.url):
            if not self._count:
                self._read_plan()
            if not self._count:
                return JobView(self._client.status(job))
            if not self._steps:
                left = redis.hget(keys("job", job), "left")
                done = self._count - int(left or 0)
                return JobView(JobState.RUNNING if left else self._client.status(job), done, self._count)
            names = [f"{name}:{index}" for name in ("dn", "k", "cur", "at") for index in range(self._count)]
            values: list[Any] = redis.hmget(keys("job", job), ["n", *names])
            if values[0] is None:
                return JobView(self._client.status(job))
            return self._view(values[1:])

    def _read_plan(self) -> None:
        redis, key = self._client.redis, self._client.keys("job", self._job)
        count = int(redis.hget(key, "n") or 0)
        if 0 < count <= MAX_STEPS:
            texts: list[Any] = redis.hmget(key, [f"s:{index}" for index in range(count)])
            if None in texts:  # it ended in between
                return
            steps = [load_step(text) for text in texts]
            self._steps = [
                StepView(step.path, tuple(op.name for op in step.ops), step.queue) for step in steps
            ]
        self._count = count

    def _view(self, values: list[Any]) -> JobView:
        count = self._count
        done, skipped, running, ready = (values[at : at + count] for at in range(0, 4 * count, count))
        leases = {i: f"{self._job}:{i}:{running[i].decode()}" for i in range(count) if running[i] is not None}
        seats: dict[int, str] = {}
        if leases:
            keys = self._client.keys
            found: list[Any] = self._client.redis.hmget(keys("who"), list(leases.values()))
            seats = {i: _worker(text) for i, text in zip(leases, found, strict=True) if text is not None}
        views = []
        for index, step in enumerate(self._steps):
            state = StageState.WAITING
            if skipped[index] is not None:
                state = StageState.SKIPPED
            elif done[index] is not None:
                state = StageState.DONE
            elif index in seats:
                state = StageState.RUNNING
            elif ready[index] is not None:
                state = StageState.READY
            views.append(StepView(step.path, step.stages, step.queue, state, seats.get(index, "")))
        counted = [view for view in views if view.state is not StageState.SKIPPED]
        finished = sum(len(view.stages) for view in counted if view.state is StageState.DONE)
        return JobView(JobState.RUNNING, finished, sum(len(view.stages) for view in counted), views)


def _worker(hold: bytes) -> str:
    """`cpu@machine` of a lease's record, which begins with the seat's id `machine.cpu`."""
    machine, _, name = hold.split(b" ")[0].decode().partition(".")
    return f"{name}@{machine}"
