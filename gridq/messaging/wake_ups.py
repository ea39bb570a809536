"""Wake-ups: the Celery messages that make a worker look for stages, or a router admit a job.

Kombu makes each once, exactly as `apply_async` would send it. It is kept as a template, which the scripts
fill in and push. So is the message that carries task events to Celery's monitors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.utils.json import dumps
from redis import Redis

from gridq.protocol.queue_names import ROUTER
from gridq.store.capacity import write_record
from gridq.store.keys import Keys

STAGE_TASK = "gridq.run_stage"
GRAPH_TASK = "gridq.run_graph"

PLACEHOLDER = "@@ID@@"
"""Stands for the task's id. Whoever pushes the message replaces it by a unique id."""

_ORIGIN = "gridq"

EVENTS = "@@EVENTS@@"
"""Stands for the JSON text of a list of events, itself encoded as a JSON string."""


def write_templates(app: Celery, client: Redis, keys: Keys) -> None:
    """Write the templates to the server. Every worker and router does so at its start; all write the same."""
    templates = {
        "stage": make_task_template(app, STAGE_TASK, "@@QUEUE@@", ()),
        "router": make_task_template(app, GRAPH_TASK, ROUTER, ("@@ID@@",)),
        "events": make_event_template(app),
        "topic": event_channel(client, keys),
    }
    write_record(client, "HSET", keys("wake_ups"), *chain.from_iterable(templates.items()))


def make_event_template(app: Celery) -> str:
    """Return the message by which Celery's event dispatcher sends a list of task events, as kombu's text."""
    with _captured(app) as (channel, pushed):
        exchange = Exchange("", "direct")
        app.amqp.Producer(channel, exchange=exchange, auto_declare=False).publish(
            EVENTS,
            routing_key="task.multi",
            serializer="json",
            headers={"hostname": _ORIGIN},
            delivery_mode=1,
        )
    made = pushed[0]
    made["properties"]["delivery_tag"] = PLACEHOLDER
    text: str = dumps(made)
    return text.replace(dumps(dumps(EVENTS)), EVENTS)


def event_channel(client: Redis, keys: Keys) -> str:
    """Return the channel on which Celery's monitors receive lists of task events, as kombu names it."""
    database = client.connection_pool.connection_kwargs.get("db") or 0
    return f"{keys.prefix}/{database}.celeryev/task.multi"


@contextmanager
def _captured(app: Celery) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Open a channel that collects what is published in a list instead of sending it."""
    options = {"body_encoding": app.conf.broker_transport_options.get("body_encoding", "base64")}
    pushed: list[dict[str, Any]] = []
    # kombu's in-memory channel makes the same message as its channel for Redis.
    with Connection("memory://", transport_options=options) as connection, connection.channel() as channel:
        channel._put = lambda _queue, made, **_more: pushed.append(made)
        yield channel, pushed


def make_task_template(app: Celery, task_name: str, queue: str, args: Sequence[Any]) -> str:
    """Return the message that `apply_async` would send for `task_name` on `queue`, as kombu's text.

    Task id, correlation id and delivery tag are `@@ID@@`. The text names no host and no process, so every
    program makes the same one. `args` must be JSON. A placeholder in `args` or `queue` is kept as it is:
    replace it only by text that JSON need not escape, and double each `%` of it in Lua's `gsub`. No server is
    needed.
    """
    app.loader.import_default_modules()  # so that the task is known, whatever this program has imported
    task = app.tasks.get(task_name)
    message = app.amqp.create_task_message(
        PLACEHOLDER,
        task_name,
        list(args),
        {},
        ignore_result=app.conf.task_ignore_result if task is None else task.ignore_result,
        argsrepr="",
        kwargsrepr="",
        origin=_ORIGIN,
    )
    with _captured(app) as (channel, pushed):
        app.amqp.send_task_message(
            app.amqp.Producer(channel, auto_declare=False),
            task_name,
            message,
            queue=Queue(queue, Exchange("", "direct"), routing_key=queue),
            declare=[],
            retry=False,
        )
    made = pushed[0]
    made["properties"]["delivery_tag"] = PLACEHOLDER
    text: str = dumps(made)
    return text
