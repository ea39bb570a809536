"""One job for each idempotency key: recognize a submission that was made before.

A job that its submitter gave an id or an idempotency key has a fingerprint: a digest of the graph, the input
and the options that affect the result, the agent among them, each in canonical JSON. The scripts compare the
digests. The keys are stored hashed, each under its agent.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from redis import Redis

from gridq.errors import IdempotencyConflict, ValueNotJson
from gridq.graph.canonical import canonical_json
from gridq.jobs.record import CONVERSATION, JobOptions
from gridq.store.keys import Keys

IGNORED_OPTIONS = frozenset({"name", "wait_for_seat"})
"""Options that do not affect the result of a job."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a submission: the stored name of its idempotency key, and the digest of its body.

    Both are empty for a submission that has neither an id nor an idempotency key of its own.
    """

    key: str = ""
    digest: str = ""


def make_fingerprint(
    graph: bytes, value: bytes | bytearray, options: JobOptions, *, is_new_id: bool
) -> Fingerprint:
    """Return the fingerprint of a submission, whose graph and input are JSON text.

    `is_new_id`: the job's id was made for this submission. Without an idempotency key nobody can submit such
    a job twice, so nothing is computed.
    """
    given = options.idempotency_key
    if given is None and is_new_id:
        return Fingerprint()
    fields = options.model_dump(mode="json", exclude=set(IGNORED_OPTIONS), exclude_defaults=True)
    if options.session is not None and options.session.startswith(CONVERSATION):
        del fields["session"]  # two gateways may name the conversation of one request differently
    if options.stream == "end":  # it says how the caller waits, which differs between the ways into the grid
        del fields["stream"]
    parts = (_canonicalize(graph), _canonicalize(value), canonical_json(fields))
    digest = hashlib.sha256("\n".join(hashlib.sha256(part).hexdigest() for part in parts).encode())
    key = f"{options.agent}:{hashlib.sha256(given.encode()).hexdigest()[:32]}" if given is not None else ""
    return Fingerprint(key, digest.hexdigest())


def _canonicalize(text: bytes | bytearray) -> bytes | bytearray:
    """Return a JSON text in canonical form. Invalid JSON is returned as it is: admission will refuse it."""
    try:
        return canonical_json(json.loads(text))
    except (ValueError, RecursionError, ValueNotJson):
        return text


def find_existing_job(client: Redis, keys: Keys, fingerprint: Fingerprint, *, verified: bool) -> str | None:
    """Return the job that was submitted with the same idempotency key and body; None if there is none.

    It only saves the work that follows; the scripts decide. `verified`: an API key identified the agent. A
    grid that requires API keys tells nobody else. Raises IdempotencyConflict.
    """
    if not fingerprint.key:
        return None
    pipe = client.pipeline(transaction=False)
    pipe.get(keys("idempotency", fingerprint.key))
    pipe.exists(keys("api_keys"))
    stored, keys_required = pipe.execute()
    if stored is None or (keys_required and not verified):
        return None
    job, _, digest = stored.decode().partition(" ")
    if digest != fingerprint.digest:
        raise build_conflict_error(job, keyed=True)
    return str(job)


def build_conflict_error(job: str, *, keyed: bool) -> IdempotencyConflict:
    """Return the error for another body under the idempotency key (else the id) of `job`."""
    what = "idempotency key" if keyed else "id"
    return IdempotencyConflict(
        f"The job {job} was submitted under this {what} with another graph, input or options",
        {
            "path": "idempotency_key" if keyed else "job",
            "job": job,
            "expected": f"the same graph, input and options under one {what}",
            "fix": f"use a new {what} for other work",
        },
    )
