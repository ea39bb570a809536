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
from gridq.seats.served_queues import POLL_SECONDS, find_unserved, note_wait, read_served_queues
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
    waited = False
    while True:
        try:
            return admit()
        except NoLiveSeat as exc:
            error = exc
        queues = find_unserved(error)
        while queues and time.monotonic() - started < seconds:
            found = read_served_queues(client, keys)
            if not found.may_be_back(queues):
                queues = ()
                break
            waited = True
            time.sleep(POLL_SECONDS)  # also if the seat came and left
            if not found.served.isdisjoint(queues):
                break
        else:
            queues = ()
        if not queues:
            if waited:
                note_wait(error, time.monotonic() - started)
            raise error
