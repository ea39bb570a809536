"""What `admit.lua` is called with: a job's plan and all that is kept of it, in the script's own order."""

from __future__ import annotations

from collections.abc import Sequence

from gridq.store.replies import Stream

Word = str | bytes | int | float

STREAM: dict[Stream, str] = {False: "", True: "1", "end": "e"}


def arguments(
    job: str, *, agent: str, prio: int, deadline_ms: int | None, ttl_ms: int, celery: bool, stream: Stream,
    wait: bool, value: bytes, answer: int, steps: int, needs: Sequence[str], ready: Sequence[int],
    fields: Sequence[str | bytes | int], name: str = "graph", session: str = "", key: str = "",
    micro_dollars: int = 0, stages: int = 0, idempotency: str = "", body: str = "",
    queue_timeout_ms: int | None = None,
) -> tuple[Word, ...]:  # fmt: skip
    """`key` is the API key's id, `micro_dollars` what the job may cost, `idempotency` the name of its
    idempotency key, `body` the digest of its body.
    """
    return (
        job, agent, prio, "" if deadline_ms is None else deadline_ms, ttl_ms, "1" if celery else "",
        STREAM[stream], "1" if wait else "", value, answer, steps, " ".join(needs), " ".join(map(str, ready)),
        name, session, key, micro_dollars, stages, idempotency, body,
        "" if queue_timeout_ms is None else queue_timeout_ms, *fields,
    )  # fmt: skip
