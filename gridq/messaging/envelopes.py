"""Messages made once by kombu and kept as text, so that a script can push them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.utils.json import dumps
from redis import Redis

from gridq.store.keys import Keys

PLACEHOLDER = "@@ID@@"
"""Stands for the task's id; whoever pushes the message puts in an id that no other message has."""

_ORIGIN = "gridq"


EVENTS = "@@EVENTS@@"
"""Stands in `broadcast` for the JSON text of a list of events, itself written as a JSON string."""


def broadcast(app: Celery) -> str:
    """The message by which Celery's event dispatcher sends a list of task events, as kombu's text of it."""
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


def topic(client: Redis, keys: Keys) -> str:
    """The channel of the server on which Celery's monitors hear lists of task events, as kombu names it."""
    database = client.connection_pool.connection_kwargs.get("db") or 0
    return f"{keys.prefix}/{database}.celeryev/task.multi"


@contextmanager
def _captured(app: Celery) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """A channel of kombu's own that keeps what is published in a list instead of sending it."""
    options = {"body_encoding": app.conf.broker_transport_options.get("body_encoding", "base64")}
    pushed: list[dict[str, Any]] = []
    # kombu's own channel that keeps its queues in memory makes the same message as the one for Redis.
    with Connection("memory://", transport_options=options) as connection, connection.channel() as channel:
        channel._put = lambda _queue, made, **_more: pushed.append(made)
        yield channel, pushed


def envelope(app: Celery, task_name: str, queue: str, args: Sequence[Any]) -> str:
    """The message that `apply_async` would send for `task_name` on `queue`, as kombu's text of it.

    Task id, correlation id and delivery tag are `@@ID@@`. The text names no host and no process, so every
    program makes the same one. `args` must be JSON; a placeholder in them or in `queue` stands in the text as
    it is. Replace only by text that JSON need not escape, and in Lua's `gsub` double each `%` of it. No
    server is needed.
    """
    app.loader.import_default_modules()  # whatever this program has imported so far
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
