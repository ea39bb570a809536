"""One job for one idempotency key: what a submission is known again by.

A job that its submitter gave an id or an idempotency key has a digest of its body: the graph, the input and
the options that bear on what comes of it, its agent among them, each in canonical JSON. The scripts compare
the digests; the keys themselves are stored hashed, each under its agent.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from redis import Redis

from gridq.errors import IdempotencyConflict, ValueNotJson
from gridq.graph.canonical import canonical_json
from gridq.jobs.record import JobOptions
from gridq.store.keys import Keys

LABELS = frozenset({"name", "wait_for_seat"})
"""Options that say nothing of what comes of a job."""


@dataclass(frozen=True, slots=True)
class Body:
    """What a submission is known again by; both empty where it has neither an id nor a key of its own."""

    key: str = ""
    digest: str = ""


def body_of(graph: bytes, value: bytes, about: JobOptions, *, fresh: bool) -> Body:
    """What a submission of JSON texts is known again by. `fresh`: its id was made just now.

    Of a `fresh` one without a key nothing is computed: nobody can submit it twice.
    """
    given = about.idempotency_key
    if given is None and fresh:
        return Body()
    options = about.model_dump(mode="json", exclude=set(LABELS), exclude_defaults=True)
    if about.stream == "end":  # how the job is waited for, which is another matter at each way into the grid
        del options["stream"]
    parts = (_canonical(graph), _canonical(value), canonical_json(options))
    digest = hashlib.sha256("\n".join(hashlib.sha256(part).hexdigest() for part in parts).encode())
    key = f"{about.agent}:{hashlib.sha256(given.encode()).hexdigest()[:32]}" if given is not None else ""
    return Body(key, digest.hexdigest())


def _canonical(text: bytes) -> bytes:
    """A JSON text in canonical form; as it is where it is none (its admission will say so)."""
    try:
        return canonical_json(json.loads(text))
    except (ValueError, RecursionError, ValueNotJson):
        return text


def earlier(client: Redis, keys: Keys, body: Body, *, verified: bool) -> str | None:
    """The job that was submitted under the same key with the same body, None where there is none.

    `verified`: the agent is known by its API key; else a grid that asks for keys says nothing. It saves the
    look at catalogue and seats alone: the scripts decide. IdempotencyConflict.
    """
    if not body.key:
        return None
    look = client.pipeline(transaction=False)
    look.get(keys("idem", body.key))
    look.exists(keys("keys"))
    known, asked = look.execute()
    if known is None or (asked and not verified):
        return None
    job, _, digest = known.decode().partition(" ")
    if digest != body.digest:
        raise conflict(job, keyed=True)
    return str(job)


def conflict(job: str, *, keyed: bool) -> IdempotencyConflict:
    """The error of a submission whose key (else its id) is that of `job`, which has another body."""
    what = "idempotency key" if keyed else "id"
    return IdempotencyConflict(
        f"The job {job} was submitted under this {what} with another graph, input or options",
        {
            "path": "idempotency_key" if keyed else "job",
            "job": job,
            "expected": f"under one {what} always the same",
            "fix": f"take another {what} for other work",
        },
    )
