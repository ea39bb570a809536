"""Publish a job's answer to Celery: the state that the ending script set, written to the result backend under
the job's id.

A router, a worker or `revoke` publishes the answer of a job that it ended. The key `answers` holds the job
until then: the sweep publishes what others ended, and tries again what failed. Publishing twice is harmless.
"""

from __future__ import annotations

import logging

from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError, ResponseError

from gridq.errors import GridError
from gridq.jobs.record import End
from gridq.store import values
from gridq.store.scripts import Scripts

log = logging.getLogger(__name__)


class DamagedAnswer(Exception):
    """No script has written the end of a job that stands there."""


def publish_answer(app: Celery, scripts: Scripts, job: str) -> None:
    """Publish the answer of an ended job and drop it from `answers`. If that fails, the sweep tries again.

    A job whose result has expired is only dropped, and so is one whose keys are damaged.
    """
    try:
        _publish(app, scripts, job)
    except DamagedAnswer as exc:
        log.error("the answer of job %s is damaged and was left out: %s", job, exc)
    except (RedisError, KombuError, OSError) as exc:
        log.warning("the answer of job %s is not published yet: %s", job, exc)
    except Exception:  # the answers behind it must not wait
        log.exception("the answer of job %s cannot be published", job)


def _publish(app: Celery, scripts: Scripts, job: str) -> None:
    client, keys = scripts.client, scripts.keys
    try:
        data = client.lindex(keys("result", job), 0)
        end = None if data is None else End.parse(data)  # type: ignore[arg-type]
        error = None if end is None else end.to_error()
    except (ResponseError, GridError, ValueError) as exc:  # it would fail at each sweep
        client.zrem(keys("answers"), job)
        raise DamagedAnswer(str(exc)) from None
    if end is not None:
        if error is None:
            try:
                answer = values.decode(values.read(client, keys, end.payload))
            except GridError as exc:  # it expired between the two reads, or cannot be read
                error = exc
        if error is None:
            app.backend.mark_as_done(job, answer)
        else:
            app.backend.mark_as_failure(job, error)
    client.zrem(keys("answers"), job)
