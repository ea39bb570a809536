"""A submission, checked and encoded: the one shape that every way into the grid hands to admission.

It loads neither profiles nor the compiler, so that `.delay()` stays cheap in an agent's process.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from redis.exceptions import OutOfMemoryError

from gridq.config.settings import Settings
from gridq.errors import InputTooLarge, ValueNotJson
from gridq.graph.nodes import parse
from gridq.jobs.idempotency import Fingerprint, make_fingerprint
from gridq.jobs.record import JobOptions, get_deadline_ms
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.store import values
from gridq.store.capacity import build_out_of_memory_error
from gridq.store.scripts import Scripts

INPUT_GRACE_MS = 3_600_000
"""The time for which a large input is kept after its job's deadline."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A submission, ready for admission.

    `graph` and `value` are JSON text; `value` may also be a link to a stored input. `key_id` is the id of the
    API key that was verified, empty where there was none. `is_new_id`: the id was made for this submission,
    so nobody else can have submitted it. `celery`: Celery waits for the answer. `queued`: the job stands in
    the inbox, with its input and its deadline. `client_waits`: a client waits for the answer on an open
    connection, so the job ends rather than wait for seats that are unavailable.
    """

    job: str
    graph: bytes
    value: bytes | bytearray
    options: JobOptions
    key_id: str = ""
    is_new_id: bool = True
    celery: bool = False
    queued: bool = False
    client_waits: bool = False

    @property
    def is_unique(self) -> bool:
        """True if no earlier submission can be the same job, so nothing has to be compared."""
        return self.is_new_id and self.options.idempotency_key is None

    def make_fingerprint(self) -> Fingerprint:
        """Return what the scripts compare to recognize the same submission; empty if it is unique."""
        return make_fingerprint(self.graph, self.value, self.options, is_new_id=self.is_new_id)


def build_request(
    scripts: Scripts,
    config: Settings,
    options: JobOptions,
    *,
    job: str,
    graph: Json,
    value: Json,
    is_new_id: bool,
    celery: bool = False,
) -> JobRequest:
    """Verify the submitter's API key, then encode the graph and the input.

    Raises AuthError, ValueNotJson and InputTooLarge.
    """
    options, key_id = api_keys.identify(scripts.client, scripts.keys, config, options)
    data = values.encode(value, limit=config.max_value, what="input", path="input")
    text = encode_graph(graph, config)
    return JobRequest(job, text, data, options, key_id, is_new_id=is_new_id, celery=celery)


def encode_graph(graph: Json, config: Settings) -> bytes:
    """Return a graph as JSON text. Text is taken as it is, anything else is encoded.

    Raises InputTooLarge, and ValueNotJson with the place of what is not JSON.
    """
    if isinstance(graph, str):
        text = graph.encode("utf-8", "surrogatepass")
    elif isinstance(graph, bytes):
        text = graph
    else:
        try:
            return values.encode(graph, limit=config.max_value, what="input", path="graph")
        except ValueNotJson:
            parse(graph, max_depth=config.max_depth)  # it names the node: one that contains itself, a NaN
            raise
    if len(text) > config.max_value:
        raise InputTooLarge(
            f"The graph is {len(text)} bytes",
            {
                "path": "graph",
                "expected": f"at most {config.max_value} bytes",
                "fix": "pass large data as input or by reference, or raise GRIDQ_MAX_VALUE",
            },
        )
    return text


def store_large_input(scripts: Scripts, job: str, value: bytes | bytearray, options: JobOptions) -> bytes:
    """Return the input as the job's record holds it: a large one is stored in a key of its own and linked.

    Raises GridFull if the server has no memory for it.
    """
    if len(value) <= scripts.config.inline_value:
        return bytes(value)
    # The name is new for each submission: two that share a job id must not share, or drop, one stored input.
    name = f"{job}:in:{secrets.token_hex(4)}"
    ttl_ms = get_deadline_ms(options, scripts.config) + INPUT_GRACE_MS
    try:
        scripts.client.set(scripts.keys("value", name), memoryview(value), px=ttl_ms)
    except OutOfMemoryError:
        raise build_out_of_memory_error() from None
    return f"@{name}".encode()
