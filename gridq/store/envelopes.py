"""Messages made once by kombu and kept as text, so that a script can push them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.utils.json import dumps

PLACEHOLDER = "@@ID@@"
"""Stands for the task's id; whoever pushes the message puts in an id that no other message has."""

_ORIGIN = "gridq"


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
    options = {"body_encoding": app.conf.broker_transport_options.get("body_encoding", "base64")}
    pushed: list[dict[str, Any]] = []
    # kombu's own channel that keeps its queues in memory makes the same message as the one for Redis.
    with Connection("memory://", transport_options=options) as connection, connection.channel() as channel:
        channel._put = lambda _queue, made, **_more: pushed.append(made)
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
