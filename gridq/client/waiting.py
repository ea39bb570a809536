"""How a job is waited for over HTTP: the calls in their order, whoever makes them, on a thread or not.

Each generator yields calls, or seconds to pause. It is sent what the calls gave, and thrown a key's limit.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from gridq.client import responses
from gridq.client.gateway_calls import Call
from gridq.errors import ConfigError, KeyLimitReached
from gridq.jobs.record import check_id
from gridq.jobs.waiting import not_found
from gridq.protocol.models import Json

POLL = 20.0
"""Seconds for which one call waits: proxies cut off what is silent for long."""

PAUSE = 0.2
"""Seconds between two calls where the gateway does not wait: it stops, or has too many who do."""

T = TypeVar("T")
Steps = Generator[Call | float, Any, T]


def the_end(job: str, timeout: float | None) -> Steps[dict[str, Json]]:
    """Calls that wait for a job's end; its status then, or once `timeout` seconds passed. JobNotFound."""
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        wait = POLL if until is None else max(min(POLL, until - asked), 0.0)
        pause = 0.0
        try:
            status: dict[str, Json] = yield look(job, wait)
        except KeyLimitReached as exc:
            if until is not None and time.monotonic() >= until:
                raise
            pause = pause_of(exc)
        else:
            if responses.state(status).final or (until is not None and time.monotonic() >= until):
                return status
            pause = PAUSE if time.monotonic() - asked < wait / 2 else 0.0
        if pause:
            yield pause if until is None else max(min(pause, until - time.monotonic()), 0.0)


def look(job: str, wait: float = 0.0) -> Call:
    """The call that asks for a job, and waits up to `wait` seconds for its end. JobNotFound: it is no id."""
    params = {"wait": round(wait, 3)} if wait else {}
    return Call("GET", place_of(job), params, wait=wait, way="wait" if wait else "short")


def place_of(job: str) -> str:
    """The path of a job. JobNotFound: it is no id."""
    try:
        path = f"/jobs/{check_id(job)}"
    except ConfigError:
        raise not_found(job) from None
    if job in (".", ".."):  # which in a path mean something else
        raise not_found(job)
    return path


def pause_of(exc: KeyLimitReached) -> float:
    """Seconds until a key may ask again."""
    after = exc.details.get("retry_after")
    return float(after) if isinstance(after, int | float) else 1.0
