"""Let a submission wait a bounded time for a seat that served its queue until lately, before it is refused.

For a caller that waits itself, on its own thread. A router leaves the job in the inbox meanwhile
(`gridq/router/router.py`), and a gateway has one poll for all (`gridq/gateway/grid/admission_wait.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from typing import Any, TypeVar

from redis import Redis

from gridq.errors import NoLiveSeat
from gridq.jobs.record import JobOptions
from gridq.protocol.queue_names import make_seat_queue
from gridq.seats import access
from gridq.seats.served_queues import (
    POLL_SECONDS,
    Queues,
    ask_for_gone_seats,
    note_wait,
    read_served_queues,
    select_lately_gone,
)
from gridq.store.keys import Keys

T = TypeVar("T")


def limit_wait(seconds: float, options: JobOptions) -> float:
    """Return how long a job may wait: `seconds`, or its own deadline or queue timeout if that is shorter."""
    return min([seconds, *(each for each in (options.deadline, options.queue_timeout) if each is not None)])


def find_awaited(
    client: Redis, keys: Keys, error: NoLiveSeat, *, queues: Set[str], options: JobOptions, team: str
) -> Queues:
    """Return the queues of which the refused job needs one: the unserved ones, or those of the seats that
    could take it and whose worker ended lately, or has just started and not advertised the seat yet.

    `queues`: all of the job's. `team`: its agent's, or empty.
    """
    if "queue" in error.details and error.path == error.details["queue"]:
        return tuple(error.details.get("queues") or (error.details["queue"],))
    pipe = client.pipeline(transaction=False)
    ask_for_gone_seats(pipe, keys)
    pipe.zrange(keys("seats"), 0, -1)
    pipe.time()
    gone, names, clock = pipe.execute()
    live = {name.decode() for name in names}
    seats = [
        seat
        for seat in (*select_lately_gone(gone, clock[0]), *live)
        if options.pin in (None, seat) and seat not in options.avoid
    ]
    for seat in seats:
        pipe.hmget(keys("seat", seat), "queues", "lent_to")
        pipe.exists(keys("advertisement", seat))
    replies: list[Any] = pipe.execute() if seats else []
    return tuple(
        make_seat_queue(seat)
        for seat, (served, lent_to), is_advertised in zip(seats, replies[::2], replies[1::2], strict=True)
        if not (is_advertised and seat in live)
        and not queues.isdisjoint((served or b"").decode().split())
        and access.is_lent_to((lent_to or b"").decode(), options.agent, team)
    )


def admit_once_served(admit: Callable[[], T], client: Redis, keys: Keys, seconds: float) -> T:
    """Return what `admit` returns.

    If it raises NoLiveSeat whose `awaited` queues were served within the last ten minutes, it is called again
    once one of them is, for at most `seconds`. Raises NoLiveSeat if no seat came or none is to be expected,
    with `waited_seconds` in its details if it waited.
    """
    until = time.monotonic() + seconds
    began_to_wait: float | None = None
    while True:
        try:
            return admit()
        except NoLiveSeat as exc:
            error = exc
        has_come = False
        while error.awaited and not has_come and time.monotonic() < until:
            found = read_served_queues(client, keys)
            if not found.may_be_back(error.awaited):
                break
            began_to_wait = began_to_wait or time.monotonic()
            time.sleep(POLL_SECONDS)  # also if one serves it now: it may have come and left
            has_come = not found.served.isdisjoint(error.awaited)
        if not has_come:
            break
    if began_to_wait is not None:
        note_wait(error, time.monotonic() - began_to_wait)
    raise error
