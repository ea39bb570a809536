"""Find a job by the beginning of its id."""

from __future__ import annotations

import re
from typing import Any

from redis import Redis

from gridq.errors import AmbiguousJob
from gridq.jobs.waiting import build_not_found_error, build_poll
from gridq.store.keys import Keys

MIN_PREFIX_LENGTH = 4
"""Shorter prefixes would match by chance."""

MAX_NAMED = 5
"""Ids that an error lists."""

FULL_LENGTH = 36
"""The length of ids that gridq makes. A text of this length is not searched for as a prefix."""

MAX_AGENT_LOOKUPS = 1000
"""Ids whose agents are looked up."""

_PREFIX = re.compile(rf"[A-Za-z0-9_.-]{{{MIN_PREFIX_LENGTH},{FULL_LENGTH - 1}}}")
_SCAN_COUNT = 10_000


def find_job(client: Redis, keys: Keys, given: str, *, agent: str | None = None) -> str:
    """Return the id of the job `given`, else of the only job whose id begins with it.

    With `agent`, jobs of other agents count as not found. Raises JobNotFound, and AmbiguousJob if there are
    several.
    """
    pipe = client.pipeline(transaction=False)
    for command in build_poll(keys, given):
        pipe.execute_command(*command)  # type: ignore[no-untyped-call]
    end, running, queued = pipe.execute()
    if end is not None or running or queued:
        if agent is not None and not _filter_by_agent(client, keys, [given], agent):
            raise build_not_found_error(given)
        return given
    if not _PREFIX.fullmatch(given):
        raise build_not_found_error(given)
    pairs: Any = client.zscan_iter(keys("jobs"), match=f"{given}*", count=_SCAN_COUNT)
    ids: list[str] = sorted({member.decode() for member, _ in pairs})  # a scan may return a member twice
    if agent is not None:
        ids = _filter_by_agent(client, keys, ids[:MAX_AGENT_LOOKUPS], agent)
    if not ids:
        raise build_not_found_error(given)
    if len(ids) > 1:
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        raise AmbiguousJob(
            f"The ids of {len(ids)} jobs begin with {given!r}",
            {
                "path": given,
                "expected": "one of " + ", ".join(ids[:MAX_NAMED]) + more,
                "fix": "type more of the id",
            },
        )
    return ids[0]


def _filter_by_agent(client: Redis, keys: Keys, jobs: list[str], agent: str) -> list[str]:
    """Return those of `jobs` that `agent` submitted and that still exist."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        for key in ("job", "submitted", "summary"):
            pipe.hget(keys(key, job), "agent")
    agents = pipe.execute() if jobs else []
    return [job for at, job in enumerate(jobs) if agent.encode() in agents[3 * at : 3 * at + 3]]
