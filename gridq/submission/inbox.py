"""The inbox: where a job stands from the moment it is submitted through Celery until a router has admitted
it.
"""

from __future__ import annotations

import secrets
from functools import cache

from gridq.config.settings import Settings, settings
from gridq.errors import InputTooLarge, ValueNotJson
from gridq.graph.nodes import parse
from gridq.jobs import idempotency
from gridq.jobs.record import JobOptions, get_deadline_ms, parse_options, get_queue_timeout_ms
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.store import values
from gridq.store.connection import connect_to_submit, translated
from gridq.store.scripts import Scripts


class Inbox:
    """The way in for jobs that a router admits. Threads may share it."""

    def __init__(self, scripts: Scripts, config: Settings) -> None:
        self.scripts = scripts
        self.config = config

    def enqueue(
        self, job: str, graph: Json, value: Json = None, *, celery: bool = False, fresh: bool = False,
        **options: Json,
    ) -> str:  # fmt: skip
        """Store a job for admission; its id, or that of the job which has its idempotency key already. The
        graph is not looked into. `fresh`: the id was made just now, nobody else can have it.

        InputTooLarge, ValueNotJson, ConfigError, AuthError, IdempotencyConflict: nothing was stored.
        """
        with translated():
            about, key = api_keys.identify(
                self.scripts.client, self.scripts.keys, self.config, parse_options(options)
            )
        data = values.encode(value, limit=self.config.max_value, what="input", path="input")
        text = graph_text(graph, self.config)
        body = idempotency.make_fingerprint(text, data, about, fresh=fresh)
        with translated():
            stored = self.scripts.enqueue(
                job,
                agent=about.agent,
                get_deadline_ms=get_deadline_ms(about, self.config),
                ttl_ms=int(self.config.result_ttl * 1000),
                celery=celery,
                stream=about.stream,
                graph=text,
                value=keep_long(self.scripts, job, data, about),
                options=about.model_dump_json(exclude_defaults=True).encode(),
                key=key,
                idempotency=body.key,
                body=body.digest,
                get_queue_timeout_ms=get_queue_timeout_ms(about, self.config),
            )
        match stored:
            case ["same", other]:
                return other
            case ["conflict", other]:
                raise idempotency.build_conflict_error(other, keyed=other != job)
            case [word]:
                raise api_keys.refused(word, key)
        return job


@cache
def default() -> Inbox:
    """This process's inbox of the grid that the settings name."""
    return Inbox(Scripts(connect_to_submit(name="gridq-submit"), settings()), settings())


def graph_text(graph: Json, config: Settings) -> bytes:
    """A graph as the JSON text that is split: text as it is, anything else encoded. InputTooLarge,
    ValueNotJson.
    """
    if isinstance(graph, str):
        text = graph.encode("utf-8", "surrogatepass")
    elif isinstance(graph, bytes):
        text = graph
    else:
        try:
            return values.encode(graph, limit=config.max_value, what="input", path="graph")
        except ValueNotJson:
            parse(graph, max_depth=config.max_depth)  # it says where: a node that contains itself, a NaN
            raise
    if len(text) > config.max_value:
        raise InputTooLarge(
            f"The graph is {len(text)} bytes",
            {
                "path": "graph",
                "expected": f"at most {config.max_value}",
                "fix": "pass large data as input or by reference, or raise GRIDQ_MAX_VALUE",
            },
        )
    return text


def keep_long(scripts: Scripts, job: str, value: bytes, about: JobOptions) -> bytes:
    """The value as a job's record holds it: a long one is written to a key of its own first, and a link to it
    is kept.
    """
    if len(value) <= scripts.config.inline_value:
        return value
    # Of each submission another: under one name two that share an id could get or drop each other's input.
    name = f"{job}:in:{secrets.token_hex(4)}"
    scripts.client.set(scripts.keys("value", name), value, px=get_deadline_ms(about, scripts.config) + 3_600_000)
    return f"@{name}".encode()
