"""Which job is meant by the beginning of an id, as people give it."""

from __future__ import annotations

import re
from typing import Any

from redis import Redis

from gridq.errors import AmbiguousJob
from gridq.jobs.waiting import build_not_found_error, build_poll
from gridq.store.keys import Keys

LEAST = 4
"""Characters that a beginning must have: a shorter one is met by chance."""

SHOWN = 5
"""Ids that an error lists."""

WHOLE = 36
"""Characters of an id that the grid makes: what is as long is no beginning, and is not searched for."""

OWNED = 1000
"""Ids at most whose agents are looked up."""

_BEGINNING = re.compile(rf"[A-Za-z0-9_.-]{{{LEAST},{WHOLE - 1}}}")
_PAGE = 10_000


def find(client: Redis, keys: Keys, given: str, *, agent: str | None = None) -> str:
    """The id of the known job that is called `given`, else of the only one whose id begins so; with `agent`
    of the jobs of that agent alone: of others nothing is told.

    JobNotFound; AmbiguousJob: there are several.
    """
    pipe = client.pipeline(transaction=False)
    for command in build_poll(keys, given):
        pipe.execute_command(*command)  # type: ignore[no-untyped-call]
    end, running, queued = pipe.execute()
    if end is not None or running or queued:
        if agent is not None and not _owned(client, keys, [given], agent):
            raise build_not_found_error(given)
        return given
    if not _BEGINNING.fullmatch(given):
        raise build_not_found_error(given)
    pairs: Any = client.zscan_iter(keys("jobs"), match=f"{given}*", count=_PAGE)
    ids: list[str] = sorted({member.decode() for member, _ in pairs})  # a scan may tell of one twice
    if agent is not None:
        ids = _owned(client, keys, ids[:OWNED], agent)
    if not ids:
        raise build_not_found_error(given)
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


def _owned(client: Redis, keys: Keys, jobs: list[str], agent: str) -> list[str]:
    """Those of `jobs` that `agent` submitted, as far as they are still there."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        for key in ("job", "submitted", "summary"):
            pipe.hget(keys(key, job), "agent")
    said = pipe.execute() if jobs else []
    return [job for at, job in enumerate(jobs) if agent.encode() in said[3 * at : 3 * at + 3]]
