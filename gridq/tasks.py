"""The Celery tasks of agents: `run_graph`, `complete`, `chat` and `embed`.

`run_graph.delay(graph, input)` stores graph and input under the job first and sends only the job's id: no
prompt is in a message, in Flower or in an event. The job's id is the Celery task's id, so `AsyncResult(id)`
finds it from anywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from celery import Task
from celery.result import AsyncResult

from gridq.app import app
from gridq.errors import ConfigError
from gridq.jobs.record import JobOptions, check_job_id, make_job_id
from gridq.messaging.wake_ups import GRAPH_TASK
from gridq.protocol.models import Json
from gridq.store.connection import translate_errors
from gridq.submission import inbox

_FOLLOW_UP = "wait for the answer, or put both steps into one graph: Celery would go on at the admission"
_DELAY = "submit it when it is due"
_TIME = "use the job's option `deadline`, or a stage's `timeout`"
_ROUTE = "leave it out: routers listen to one queue, and a stage's capability decides where it runs"
_WIRE = "leave it out: the message, which holds only the job's id, is JSON and not kept"
REFUSED_OPTIONS = {
    "chain": _FOLLOW_UP, "chord": _FOLLOW_UP, "link": _FOLLOW_UP, "link_error": _FOLLOW_UP,
    "countdown": _DELAY, "eta": _DELAY,
    "expires": "use the job's option `deadline`", "expiration": "use the job's option `deadline`",
    "priority": "pass the job's option: kwargs={'priority': 'batch'} or {'priority': 'interactive'}",
    "time_limit": _TIME, "soft_time_limit": _TIME,
    "queue": _ROUTE, "exchange": _ROUTE, "routing_key": _ROUTE, "router": _ROUTE,
    "serializer": _WIRE, "delivery_mode": _WIRE, "mandatory": _WIRE, "immediate": _WIRE,
    "retries": "use a Retry in the graph",
}  # fmt: skip
"""Options of `apply_async` that would have no effect, or another one than they say, because its message only
announces a job. Each with what to do instead.
"""

HONOURED_OPTIONS = frozenset({
    "connection", "producer", "publisher", "retry", "retry_policy", "timeout",  # how the message is published
    "compression", "correlation_id", "headers", "reply_to", "shadow", "ignore_result", "add_to_parent",
    "group_id", "group_index", "parent_id", "root_id", "replaced_task_nesting", "stamped_headers",
    "task_type", "result_cls", "route_name", "argsrepr", "kwargsrepr", "origin",
})  # fmt: skip
"""Options of `apply_async` that have the same effect as for any task, some of them set by Celery itself."""

NEUTRAL_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "countdown": (0,),
    "link": ([], ()),
    "link_error": ([], ()),
    "chain": ([], ()),
    "retries": (0,),
}
"""Values beside None that ask for nothing."""


def check_message_options(options: Mapping[str, Any]) -> None:
    """Check the options of `apply_async`. Raises ConfigError, which names one without effect."""
    stamps = options.get("stamped_headers") or ()
    for name, value in options.items():
        if (
            value is None
            or value in NEUTRAL_OPTIONS.get(name, ())
            or name in HONOURED_OPTIONS
            or name in stamps
        ):
            continue
        if name in REFUSED_OPTIONS:
            raise ConfigError(
                f"Celery's option {name!r} does not apply to graphs",
                {"path": name, "fix": REFUSED_OPTIONS[name]},
            )
        shown = name[:64]
        if name in JobOptions.model_fields:
            fix = f"pass it with the arguments: kwargs={{{shown!r}: …}}"
            raise ConfigError(
                f"{shown!r} is an option of the job, not of Celery", {"path": shown, "fix": fix}
            )
        near = difflib.get_close_matches(name, [*HONOURED_OPTIONS, *REFUSED_OPTIONS], 1)
        raise ConfigError(
            f"Unknown option of apply_async: {shown!r}",
            {"path": shown, "fix": f"did you mean {near[0]!r}?" if near else "leave it out"},
        )


class GraphTask(Task):  # type: ignore[misc]
    """A task whose arguments go to the inbox, not into its message."""

    abstract = True

    def make_graph(self, *args: Any, **kwargs: Any) -> tuple[Json, Json, dict[str, Json]]:
        """Return the graph, its input and the job's options of one call."""
        return _split_arguments(*args, **kwargs)

    def apply(self, *_: Any, **__: Any) -> Any:
        """Raise ConfigError: a graph runs on the grid, never in this process."""
        raise make_direct_call_error(self)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        """Store the job, then send its id. Takes the options of Celery in HONOURED_OPTIONS.

        InputTooLarge, ValueNotJson, ConfigError, IdempotencyConflict: nothing was stored. BrokerUnreachable:
        the job may have been stored; calling again with the same `task_id` or `idempotency_key` is safe.
        """
        check_message_options(options)
        graph, value, job_options = self.make_graph(*(args or ()), **(kwargs or {}))
        job = check_job_id(task_id or make_job_id())
        known = inbox.get_default_inbox().enqueue(
            job,
            graph,
            value,
            celery=not options.get("ignore_result"),
            is_new_id=task_id is None,
            **job_options,
        )
        if known != job:
            if options.get("group_id"):  # Celery would wait for the id that it has given to this one
                raise ConfigError(
                    f"The job {known} already has this idempotency key, and a group waits for ids of its own",
                    {"path": "idempotency_key", "job": known, "fix": "submit it outside the group"},
                )
            return self.AsyncResult(known)
        with translate_errors():
            return run_graph.send_wake_up(job, options)


class RunGraph(GraphTask):
    """`run_graph`. A router sets `admit(job)`; in any other process a message does nothing."""

    abstract = True
    Request = "gridq.messaging.router_request:AdmissionRequest"
    admit: Callable[[str], None] | None = None

    def send_wake_up(self, job: str, options: dict[str, Any]) -> AsyncResult:
        """Send the message that tells a router to admit `job`."""
        options = {"argsrepr": "", "kwargsrepr": "", **options}
        return Task.apply_async(self, (job,), {}, task_id=job, **options)


def make_direct_call_error(task: Task) -> ConfigError:
    """Return the error for a task that is called like a function, which would run nothing."""
    name = task.name.partition(".")[2]
    return ConfigError(
        f"{name} runs on the grid, not in this process",
        {
            "path": name,
            "expected": f"{name}.delay(…).get(timeout=…)",
            "fix": f"write {name}.delay(…): it submits and returns an AsyncResult, whose .get() waits for "
            "the answer. Without Celery: gridq.Client().run(graph, input)",
        },
    )


def _split_arguments(graph: Json, input: Json = None, **options: Json) -> tuple[Json, Json, dict[str, Json]]:
    return graph, input, options


# Without Celery's own events: the scripts publish the job's, and Celery's would show the arguments of a
# message that was sent past `apply_async`.
@app.task(bind=True, base=RunGraph, name=GRAPH_TASK, ignore_result=False, send_events=False)  # type: ignore[untyped-decorator]
def run_graph(self: Any, job: str = "", *_: Any, **__: Any) -> None:
    """Run a graph. `run_graph.delay(graph, input, **options)` returns an AsyncResult; its `.get()` returns
    the graph's answer, or raises the GridError that ended the job.

    `graph` is a graph as JSON text or dict, `input` any JSON value, the options those of
    `gridq.jobs.record.JobOptions`.
    """
    if self.request.called_directly:
        raise make_direct_call_error(self)
    # The answer comes from whoever ends the job. `raise Ignore` would say the same, but Celery copies its
    # traceback twice: several ms of its time and 0.2 MB for each job.
    self.request.ignore_result = True
    if self.admit is not None and job:
        self.admit(job)


class ModelTask(GraphTask):
    """One call of one built-in model stage."""

    abstract = True
    stage = ""
    field = ""

    def make_graph(self, *args: Any, **kwargs: Any) -> tuple[Json, Json, dict[str, Json]]:
        return make_model_graph(self.stage, self.field, *args, **kwargs)


def make_model_graph(
    stage: str, field: str, value: Json = None, **given: Json
) -> tuple[Json, Json, dict[str, Json]]:
    """Return a one-stage graph, its input and the job's options; other arguments are the stage's config."""
    value = given.pop(field, value)
    job_options = {name: given.pop(name) for name in JobOptions.model_fields.keys() & given}
    node: dict[str, Json] = {"op": "Stage", "id": stage}
    if given:
        node["config"] = given
    return {"root": node}, {field: value}, job_options


def _model_task(name: str, stage: str, field: str, doc: str) -> Any:
    base = type(f"{name.title()}Task", (ModelTask,), {"abstract": True, "stage": stage, "field": field})

    def refuse(self: Any, *_: Any, **__: Any) -> None:  # only if it is called: it is sent as gridq.run_graph
        raise make_direct_call_error(self)

    refuse.__doc__ = doc  # not of the task: that would make it now, which needs the configuration
    return app.task(
        refuse, bind=True, base=base, name=f"gridq.{name}", ignore_result=False, send_events=False
    )


complete = _model_task(
    "complete", "llm_complete", "prompt",
    "Complete a prompt: `complete.delay(prompt=…, model=…, max_tokens=…)` answers with the model's text. "
    "Without `model`, any model.",
)  # fmt: skip
chat = _model_task(
    "chat", "llm_chat", "messages",
    "Continue a chat: `chat.delay(messages=[{role, content}, …], model=…)` answers with the model's "
    "{role, content, finish_reason}.",
)  # fmt: skip
embed = _model_task(
    "embed", "llm_embed", "input",
    "Embed text: `embed.delay(input=text or list of texts, model=…)` answers with one vector, or with a "
    "list of them.",
)  # fmt: skip
