"""Which form the data on the server have, and what the scripts' refusals mean.

Programs of two versions of gridq may meet on one server while it is upgraded. As long as their SCHEMA is the
same they work side by side; else the scripts that begin something (enqueue, admit, stop, register, adopt,
sweep, limit, quarantine) refuse the one whose number is not the data's. Those that go on with what was begun
(claim, renew, emit, complete, keep, fail, leave, rank) do not ask: the number rises only where no seat is
live and no job runs or waits, so there is no lease and no incarnation of before that they could be called
for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from redis.exceptions import ResponseError

from gridq.errors import GridError, SchemaMismatch
from gridq.store.capacity import full

SCHEMA = 5
"""The form of the data that this version's scripts read and write.

Raise it where a script of this version could misread what one of the version before wrote, or the other way
round: a field's or a reply's form, the grammar of a key, of a lease or of a class. A new key or field that
the older may overlook does not need it. What outlives a job must still be read: `result:`, `summary:` and `rows:`
of jobs that have ended, `keys`, `limits`, `calendar`, the records of seats.
"""

PATIENCE = 2.0
"""Seconds beyond a lease that a starting program gives dead seats of the version before."""


def refusal(exc: ResponseError) -> GridError | None:
    """The error that a script's refusal stands for; None where it is no refusal but a fault."""
    word, _, about = str(exc).partition(" ")
    if word == "FULL":
        return full(about)
    if word != "SCHEMA":
        return None
    grid, seats, jobs = map(int, about.split(" "))
    if grid > SCHEMA:
        fix = "install the version of gridq that the grid runs"
    elif jobs:
        fix = "let the older version finish its jobs and end its routers and workers, then start this one"
    else:
        fix = "end the older routers and workers, then start this one"
    return SchemaMismatch(
        f"The grid's data have schema {grid or 'none'}, this gridq has {SCHEMA}",
        {"grid": grid, "program": SCHEMA, "seats": seats, "jobs": jobs, "expected": "the same", "fix": fix},
    )


def adopt(ask: Callable[[], object], lease_ms: int, renew_ms: int) -> None:
    """Start on a grid of this schema, or make it one where nothing lives there.

    `ask` calls the script. Seats that were killed are waited for until they are known to be dead.
    SchemaMismatch: programs of another version are at work, or their jobs wait.
    """
    until = time.monotonic() + lease_ms / 1000 + PATIENCE
    while True:
        try:
            ask()
            return
        except SchemaMismatch as exc:
            there = exc.details
            if there["grid"] > SCHEMA or there["jobs"] or time.monotonic() > until:
                raise
        time.sleep((lease_ms - renew_ms) / 4000)
