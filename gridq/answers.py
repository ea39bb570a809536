"""A job's end told to Celery: exactly the state that the ending script set, written to the result backend of
the job's id.

Whoever sees the end writes it; `answers` keeps the job until it is written, and the sweep tries again.
Writing it twice is harmless.
"""

from __future__ import annotations

from celery import Celery
from redis import Redis

from gridq.errors import ValueGone
from gridq.jobs import End
from gridq.store import values
from gridq.store.keys import Keys


def write(app: Celery, client: Redis, keys: Keys, job: str) -> None:
    """Write the answer of an ended job and forget that it is due. A job whose result has expired is only
    forgotten.
    """
    data = client.lindex(keys("fin", job), 0)
    if data is not None:
        end = End.read(data)  # type: ignore[arg-type]
        error = end.error()
        if error is None:
            try:
                answer = values.decode(values.read(client, keys, end.payload))
            except ValueGone as exc:  # its time ran out between the two reads
                error = exc
        if error is None:
            app.backend.mark_as_done(job, answer)
        else:
            app.backend.mark_as_failure(job, error)
    client.zrem(keys("answers"), job)
