"""The schema of the data on the server, and the errors of the scripts that refuse to begin.

During an upgrade, programs of two versions of gridq may meet on one server. If their SCHEMA is the same, they
work side by side. Otherwise the scripts that begin something (enqueue, admit, stop, register, adopt_schema,
sweep, apply_limits, quarantine) refuse the program whose number is not the data's. Scripts that go on with
what was begun (claim, renew, emit, complete, store_value, fail, leave, rank) do not check: the number rises
only while no seat is live and no job runs or waits, so no earlier lease or incarnation is left that they
could be called for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from redis.exceptions import ResponseError

from gridq.errors import GridError, SchemaMismatch
from gridq.store.capacity import build_grid_full_error

SCHEMA = 6
"""The schema that this version's scripts read and write.

Raise it if a script of this version could misread what the version before wrote, or the other way round: the
form of a field or a reply, the grammar of a key, a lease or a class. A new key or field that the older
version may ignore does not need it. What outlives a job must still be read: `result:`, `summary:` and
`rows:` of ended jobs, `api_keys`, `limits`, `calendar`, the records of seats.
"""

WAIT_SECONDS = 2.0
"""Seconds beyond a lease for which a starting program waits for dead seats of the version before."""


def parse_refusal(exc: ResponseError) -> GridError | None:
    """Return the error that a script's refusal stands for, None if it is another fault."""
    word, _, about = str(exc).partition(" ")
    if word == "FULL":
        return build_grid_full_error(about)
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
        f"The grid's data has schema {grid or 'none'}, but this version of gridq has schema {SCHEMA}",
        {"grid": grid, "program": SCHEMA, "seats": seats, "jobs": jobs, "expected": "the same", "fix": fix},
    )


def adopt(call: Callable[[], object], lease_ms: int, renew_ms: int) -> None:
    """Start on a grid of this schema, or give it this schema if nothing lives there.

    `call` runs the script. Seats that were killed are waited for until they are known to be dead. Raises
    SchemaMismatch if programs of another version work here, or their jobs wait.
    """
    until = time.monotonic() + lease_ms / 1000 + WAIT_SECONDS
    while True:
        try:
            call()
            return
        except SchemaMismatch as exc:
            found = exc.details
            if found["grid"] > SCHEMA or found["jobs"] or time.monotonic() > until:
                raise
        time.sleep((lease_ms - renew_ms) / 4000)
