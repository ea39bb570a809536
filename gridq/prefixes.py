"""Which job is meant by the beginning of an id, as people give it."""

from __future__ import annotations

import re
from typing import Any

from redis import Redis

from gridq.awaiting import look, not_found
from gridq.errors import AmbiguousJob
from gridq.store.keys import Keys

LEAST = 4
"""Characters that a beginning must have: a shorter one is met by chance."""

SHOWN = 5
"""Ids that an error lists."""

_BEGINNING = re.compile(rf"[A-Za-z0-9_.-]{{{LEAST},128}}")
_PAGE = 10_000


def find(client: Redis, keys: Keys, given: str) -> str:
    """The id of the known job that is called `given`, else of the only one whose id begins so.

    JobNotFound; AmbiguousJob: there are several.
    """
    pipe = client.pipeline(transaction=False)
    for command in look(keys, given):
        pipe.execute_command(*command)  # type: ignore[no-untyped-call]
    end, running, queued = pipe.execute()
    if end is not None or running or queued:
        return given
    if not _BEGINNING.fullmatch(given):
        raise not_found(given)
    pairs: Any = client.zscan_iter(keys("jobs"), match=f"{given}*", count=_PAGE)
    ids: list[str] = sorted({member.decode() for member, _ in pairs})  # a scan may tell of one twice
    if not ids:
        raise not_found(given)
    if len(ids) > 1:
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        raise AmbiguousJob(
            f"{len(ids)} jobs begin with {given!r}",
            {
                "path": given,
                "expected": "one of " + ", ".join(ids[:SHOWN]) + more,
                "fix": "give more of the id",
            },
        )
    return ids[0]
