"""Let a submission wait a bounded time for a seat that served its queue until lately, before it is refused.

For a caller that waits itself, on its own thread. A router leaves the job in the inbox meanwhile
(`gridq/router/router.py`), and a gateway has one poll for all (`gridq/gateway/grid/admission_wait.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from redis import Redis

from gridq.errors import NoLiveSeat
from gridq.jobs.record import JobOptions
from gridq.seats.served_queues import POLL_SECONDS, Queues, find_unserved, note_wait, read_served_queues
from gridq.store.keys import Keys

T = TypeVar("T")


def limit_wait(seconds: float, options: JobOptions) -> float:
    """Return how long a job may wait: `seconds`, or its own deadline or queue timeout if that is shorter."""
    return min([seconds, *(each for each in (options.deadline, options.queue_timeout) if each is not None)])


def admit_once_served(admit: Callable[[], T], client: Redis, keys: Keys, seconds: float) -> T:
    """Return what `admit` returns.

    If it raises NoLiveSeat for a queue that was served within the last ten minutes, it is called again once a
    seat serves the queue, for at most `seconds`. Raises NoLiveSeat if no seat came or none is to be expected,
    with `waited_seconds` in its details if it waited.
    """
    started = time.monotonic()
    while True:
        try:
            return admit()
        except NoLiveSeat as exc:
            error = exc
        if not _wait_until_served(find_unserved(error), client, keys, started + seconds):
            break
    waited = time.monotonic() - started
    if waited >= POLL_SECONDS:
        note_wait(error, waited)
    raise error


def _wait_until_served(queues: Queues, client: Redis, keys: Keys, until: float) -> bool:
    """Wait until a seat serves one of the queues. Return False if none is to be expected, or none came until
    then (of the monotonic clock).
    """
    while queues and time.monotonic() < until:
        found = read_served_queues(client, keys)
        if not found.may_be_back(queues):
            return False
        time.sleep(POLL_SECONDS)  # also if one serves it now: it may have come and left
        if not found.served.isdisjoint(queues):
            return True
    return False
