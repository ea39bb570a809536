"""A job's end told to Celery: exactly the state that the ending script set, written to the result backend of
the job's id.

Whoever sees the end writes it; `answers` keeps the job until it is written, and the sweep tries again.
Writing it twice is harmless.
"""

from __future__ import annotations

import logging

from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from gridq.errors import GridError
from gridq.jobs.record import End
from gridq.store import values
from gridq.store.scripts import Scripts

log = logging.getLogger(__name__)


def write(app: Celery, scripts: Scripts, job: str) -> None:
    """Write the answer of an ended job and forget that it is due; where that fails, the sweep tries again.

    A job whose result has expired is only forgotten.
    """
    try:
        _write(app, scripts, job)
    except (RedisError, KombuError, OSError) as exc:
        log.warning("the answer of job %s is not written yet: %s", job, exc)
    except Exception:  # those behind it are due too
        log.exception("the answer of job %s cannot be written", job)


def _write(app: Celery, scripts: Scripts, job: str) -> None:
    client, keys = scripts.client, scripts.keys
    data = client.lindex(keys("result", job), 0)
    if data is not None:
        end = End.read(data)  # type: ignore[arg-type]
        error = end.error()
        if error is None:
            try:
                answer = values.decode(values.read(client, keys, end.payload))
            except GridError as exc:  # its time ran out between the two reads, or it cannot be read
                error = exc
        if error is None:
            app.backend.mark_as_done(job, answer)
        else:
            app.backend.mark_as_failure(job, error)
    client.zrem(keys("answers"), job)
