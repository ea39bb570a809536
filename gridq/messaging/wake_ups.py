"""Wake-ups: the Celery messages that wake a worker to look, or a router to admit.

Each is made once by kombu, exactly as `apply_async` would send it, and kept as a template that the scripts
fill in and push.
"""

from __future__ import annotations

from celery import Celery
from redis import Redis

from gridq.messaging.envelopes import broadcast, envelope, topic
from gridq.protocol.queue_names import ROUTER
from gridq.store.keys import Keys

STAGE_TASK = "gridq.run_stage"
GRAPH_TASK = "gridq.run_graph"


def declare(app: Celery, client: Redis, keys: Keys) -> None:
    """Write the templates. Every worker and router does so at its start; they all write the same."""
    client.hset(
        keys("wake_ups"),
        mapping={
            "stage": envelope(app, STAGE_TASK, "@@QUEUE@@", ()),
            "router": envelope(app, GRAPH_TASK, ROUTER, ("@@ID@@",)),
            "events": broadcast(app),
            "topic": topic(client, keys),
        },
    )
