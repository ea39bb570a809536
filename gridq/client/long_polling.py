"""Wait for a job's end over HTTP: the sequence of calls, written once for threads and asyncio.

The generator yields a Call to make, or a number of seconds to pause. The caller sends it the answer of each
call, and throws KeyLimitReached into it when the key has no request left.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from gridq.client import responses
from gridq.client.gateway_calls import Call
from gridq.errors import ConfigError, KeyLimitReached
from gridq.jobs.record import check_job_id
from gridq.jobs.waiting import build_not_found_error, check_is_id
from gridq.protocol.models import Json

LONG_POLL_SECONDS = 20.0
"""The longest wait of one call. Proxies cut connections that stay silent for long."""

RETRY_PAUSE_SECONDS = 0.2
"""The pause between two calls if the gateway did not wait: it is stopping, or too many requests wait already.
"""

T = TypeVar("T")
Steps = Generator[Call | float, Any, T]


def poll_until_end(job: str, timeout: float | None) -> Steps[dict[str, Json]]:
    """Poll a job until it ends or `timeout` seconds have passed, and return its last status.

    Raises JobNotFound.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        started = time.monotonic()
        wait = LONG_POLL_SECONDS if deadline is None else max(min(LONG_POLL_SECONDS, deadline - started), 0.0)
        pause = 0.0
        try:
            status: dict[str, Json] = yield build_job_call(job, wait)
        except KeyLimitReached as exc:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            pause = get_retry_delay(exc)
        else:
            if responses.read_state(status).is_final:
                return status
            if deadline is not None and time.monotonic() >= deadline:
                return status
            pause = RETRY_PAUSE_SECONDS if time.monotonic() - started < wait / 2 else 0.0
        if pause:
            yield pause if deadline is None else max(min(pause, deadline - time.monotonic()), 0.0)


def build_job_call(job: str, wait: float = 0.0) -> Call:
    """Return the call that reads a job's status and waits up to `wait` seconds for its end.

    Raises JobNotFound if `job` cannot be an id.
    """
    params = {"wait": round(wait, 3)} if wait else {}
    return Call("GET", build_job_path(job), params, wait=wait, kind="wait" if wait else "short")


def build_job_path(job: str) -> str:
    """Return the URL path of a job. Raises JobNotFound or ConfigError if `job` is no id."""
    check_is_id(job)
    try:
        path = f"/jobs/{check_job_id(job)}"
    except ConfigError:
        raise build_not_found_error(job) from None
    if job in (".", ".."):  # a path would not be about this job
        raise build_not_found_error(job)
    return path


def get_retry_delay(exc: KeyLimitReached) -> float:
    """Return the seconds until the key may make its next request."""
    delay = exc.details.get("retry_after")
    return float(delay) if isinstance(delay, int | float) else 1.0
