"""The Celery tasks: for agents `run_graph`, `complete`, `chat`, `embed`; for the grid itself `run_stage`.
They only delegate.

`run_graph.delay(graph, input)` stores graph and input under the job first and sends only the job's id: no
prompt stands in a message, in Flower or in an event. The job's id is the Celery task's id, so
`AsyncResult(id)` finds it from anywhere.
"""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.result import AsyncResult

from gridq.app import app
from gridq.errors import ConfigError
from gridq.execution import session as executor
from gridq.jobs.record import JobOptions, check_id, new_id
from gridq.messaging.wake_ups import GRAPH_TASK, STAGE_TASK
from gridq.protocol.models import Json
from gridq.router import router
from gridq.store.connection import translated
from gridq.submission import inbox

_AFTER = "wait for the answer, or put both steps into one graph: Celery would go on at the admission"
_TIME = "submit it when it is due"
NOT_FOR_JOBS = {
    "chain": _AFTER, "chord": _AFTER, "link": _AFTER, "link_error": _AFTER, "countdown": _TIME, "eta": _TIME,
    "expires": "use the job's option `deadline`",
}  # fmt: skip
"""Options of `apply_async` that follow the message, which only says that a job waits, and not the job."""


class GraphTask(Task):  # type: ignore[misc]
    """A task whose arguments go to the inbox, not into its message."""

    abstract = True

    def graph_of(self, *args: Any, **kwargs: Any) -> tuple[Json, Json, dict[str, Json]]:
        """(graph, input, the job's options) of one call."""
        return _graph(*args, **kwargs)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        """Store the job, then send its id. Takes Celery's own options, but those in NOT_FOR_JOBS; raises
        GridError at once where the call is wrong.

        InputTooLarge, ValueNotJson, ConfigError, IdempotencyConflict: nothing was stored. BrokerUnreachable:
        it may have been stored; the same `task_id` or `idempotency_key` again is safe.
        """
        for name in NOT_FOR_JOBS.keys() & options.keys():
            if options[name]:
                raise ConfigError(
                    f"Celery's option {name!r} is not for graphs", {"path": name, "fix": NOT_FOR_JOBS[name]}
                )
        graph, value, about = self.graph_of(*(args or ()), **(kwargs or {}))
        job = check_id(task_id or new_id())
        first = inbox.default().enqueue(job, graph, value, celery=True, fresh=task_id is None, **about)
        if first != job:
            if options.get("group_id"):  # Celery would wait for the id that it has given to this one
                raise ConfigError(
                    f"The job {first} has this idempotency key already, and a group waits for ids of its own",
                    {"path": "idempotency_key", "job": first, "fix": "submit it outside of the group"},
                )
            return self.AsyncResult(first)
        with translated():
            return run_graph.send_wake_up(job, options)


class RunGraph(GraphTask):
    abstract = True
    Request = "gridq.messaging.router_request:AdmissionRequest"

    def send_wake_up(self, job: str, options: dict[str, Any]) -> AsyncResult:
        """Send the message that tells a router to admit `job`."""
        options = {"argsrepr": "", "kwargsrepr": "", **options}
        return Task.apply_async(self, (job,), {}, task_id=job, **options)


def _graph(graph: Json, input: Json = None, **options: Json) -> tuple[Json, Json, dict[str, Json]]:
    return graph, input, options


# Without Celery's own events: the scripts tell of the job, and those would show the arguments of a message
# that was sent past `apply_async`.
@app.task(bind=True, base=RunGraph, name=GRAPH_TASK, ignore_result=False, send_events=False)  # type: ignore[untyped-decorator]
def run_graph(self: Any, job: str) -> None:
    """Admit a job. `run_graph.delay(graph, input, **options)` returns an AsyncResult whose `.get()` is the
    graph's answer.

    `graph` is a graph as JSON text or dict, `input` any JSON value, the options those of
    `gridq.jobs.record.JobOptions`. `.get()` raises the GridError that ended the job.
    """
    # The answer, an error too, comes from whoever ends the job. `raise Ignore` would say the same, but Celery
    # copies its traceback twice: several ms of its time and 0.2 MB for each job.
    self.request.ignore_result = True
    here = router.current()
    if here is None:
        return
    with here.session.watchdog.taking():
        if here.admit(job):
            here.session.work()


@app.task(name=STAGE_TASK, ignore_result=True, send_events=False)  # type: ignore[untyped-decorator]
def run_stage() -> None:
    """A wake-up: look for stages to run on this worker's seat."""
    session = executor.current()
    if session is not None:
        with session.watchdog.taking():
            session.work()


class OneStage(GraphTask):
    """One call of one built-in model stage."""

    abstract = True
    stage = ""
    field = ""

    def graph_of(self, *args: Any, **kwargs: Any) -> tuple[Json, Json, dict[str, Json]]:
        return one_stage(self.stage, self.field, *args, **kwargs)


def one_stage(
    stage: str, field: str, value: Json = None, **given: Json
) -> tuple[Json, Json, dict[str, Json]]:
    """The graph of one stage: the job's options apart, every other argument is the stage's config."""
    value = given.pop(field, value)
    about = {name: given.pop(name) for name in JobOptions.model_fields.keys() & given}
    graph = (
        {"root": {"op": "Stage", "id": stage, "config": given}}
        if given
        else {"root": {"op": "Stage", "id": stage}}
    )
    return graph, {field: value}, about


def _never(*_: Any) -> None:
    """Sent as `gridq.run_graph`; a worker never sees this name."""


def _one(name: str, stage: str, field: str, doc: str) -> Any:
    base = type(f"{name.title()}Task", (OneStage,), {"abstract": True, "stage": stage, "field": field})
    task = app.task(_never, base=base, name=f"gridq.{name}", ignore_result=False, send_events=False)
    task.__doc__ = doc
    return task


complete = _one(
    "complete", "llm_complete", "prompt",
    "`complete.delay(prompt=…, model=…, max_tokens=…)`: the model's text. Without `model`, any model.",
)  # fmt: skip
chat = _one(
    "chat", "llm_chat", "messages",
    "`chat.delay(messages=[{role, content}, …], model=…)`: the model's {role, content, finish_reason}.",
)  # fmt: skip
embed = _one(
    "embed", "llm_embed", "input",
    "`embed.delay(input=text or list of texts, model=…)`: one vector, or a list of them.",
)  # fmt: skip
