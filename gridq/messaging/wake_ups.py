"""Wake-ups: the Celery messages that make a worker look for stages, or a router admit a job.

Kombu makes each once, exactly as `apply_async` would send it. It is kept as a template, which the scripts
fill in and push.
"""

from __future__ import annotations

from celery import Celery
from redis import Redis

from gridq.messaging.envelopes import event_channel, make_event_template, make_task_template
from gridq.protocol.queue_names import ROUTER
from gridq.store.keys import Keys

STAGE_TASK = "gridq.run_stage"
GRAPH_TASK = "gridq.run_graph"


def write_templates(app: Celery, client: Redis, keys: Keys) -> None:
    """Write the templates to the server. Every worker and router does so at its start; all write the same."""
    client.hset(
        keys("wake_ups"),
        mapping={
            "stage": make_task_template(app, STAGE_TASK, "@@QUEUE@@", ()),
            "router": make_task_template(app, GRAPH_TASK, ROUTER, ("@@ID@@",)),
            "events": make_event_template(app),
            "topic": event_channel(client, keys),
        },
    )
