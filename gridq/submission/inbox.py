"""The inbox: jobs submitted through Celery wait here until a router admits them."""

from __future__ import annotations

from functools import cache

from gridq.config.settings import Settings, settings
from gridq.jobs import idempotency
from gridq.jobs.record import get_deadline_ms, get_queue_timeout_ms, parse_options
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.store.connection import connect_to_submit, translate_errors
from gridq.store.replies import KeyRefused, OtherBody, SameJob
from gridq.store.scripts import Scripts
from gridq.submission.request import build_request, store_large_input


class Inbox:
    """The way in for jobs that a router admits. Threads may share it."""

    def __init__(self, scripts: Scripts, config: Settings) -> None:
        self.scripts = scripts
        self.config = config

    def enqueue(
        self, job: str, graph: Json, value: Json = None, *, celery: bool = False, is_new_id: bool = False,
        **options: Json,
    ) -> str:  # fmt: skip
        """Store a job for admission. Return its id, or that of an earlier job with its idempotency key.

        The graph is not compiled. `is_new_id`: the id was made for this submission. Nothing is stored if it
        raises InputTooLarge, ValueNotJson, ConfigError, AuthError or IdempotencyConflict.
        """
        about = parse_options(options)
        with translate_errors():
            request = build_request(
                self.scripts, self.config, about,
                job=job, graph=graph, value=value, is_new_id=is_new_id, celery=celery,
            )  # fmt: skip
            about = request.options
            fingerprint = request.make_fingerprint()
            reply = self.scripts.enqueue(
                job,
                agent=about.agent,
                deadline_ms=get_deadline_ms(about, self.config),
                result_ttl_ms=int(self.config.result_ttl * 1000),
                celery=celery,
                stream=about.stream,
                graph=request.graph,
                input=store_large_input(self.scripts, job, request.value, about),
                options=about.model_dump_json(exclude_defaults=True).encode(),
                api_key=request.key_id,
                idempotency_key=fingerprint.key,
                body_digest=fingerprint.digest,
                queue_timeout_ms=get_queue_timeout_ms(about, self.config),
            )
        match reply:
            case SameJob(other):
                return other
            case OtherBody(other):
                raise idempotency.build_conflict_error(other, keyed=other != job)
            case KeyRefused(reason):
                raise api_keys.build_key_error(reason, request.key_id)
        return job


@cache
def get_default_inbox() -> Inbox:
    """Return this process's inbox of the grid that the settings name."""
    return Inbox(Scripts(connect_to_submit(name="gridq-submit"), settings()), settings())
