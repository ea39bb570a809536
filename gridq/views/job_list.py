"""The list of jobs, page by page, the latest first."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from redis import Redis

from gridq.errors import RequestError
from gridq.protocol.states import JobState
from gridq.store.keys import Keys
from gridq.views.jobs import HEADER_FIELDS, JobSummary, build_summary

PAGE_SIZE = 200
"""Jobs that one round trip reads."""

MAX_SCANNED = 10_000
"""Jobs that one call reads at most. If few of them match, the next page continues there."""

_CURSOR = re.compile(r"(\d{1,16}):([A-Za-z0-9_.-]{1,128})")


class JobPage(NamedTuple):
    """A page of jobs, and the cursor of the next page; None: there is none."""

    jobs: list[JobSummary]
    after: str | None


class _Position(NamedTuple):
    """A job's position in the list: when it was submitted, in ms, and its id."""

    ms: int
    job: str


def list_jobs(
    client: Redis,
    keys: Keys,
    limit: int = 20,
    state: JobState | None = None,
    *,
    agent: str | None = None,
    before: str | None = None,
) -> JobPage:
    """Return up to `limit` jobs, the latest first, optionally only those in `state` and of `agent`.

    `before` is the `after` of the previous page. A page may have fewer jobs, even none, and still be followed
    by another one, because MAX_SCANNED bounds what one call reads. Raises RequestError if `before` is not a
    cursor.
    """
    position = _parse_cursor(before)
    found: list[JobSummary] = []
    scanned = 0
    while scanned < MAX_SCANNED:
        page = _read_older(client, keys, position)
        for summary, at in zip(_read_summaries(client, keys, page), page, strict=True):
            position = at
            scanned += 1
            if summary is None or state not in (None, summary.state) or agent not in (None, summary.agent):
                continue
            found.append(summary)
            if len(found) == limit:
                return JobPage(found, f"{position.ms}:{position.job}")
        if len(page) < PAGE_SIZE:
            return JobPage(found, None)
    return JobPage(found, None if position is None else f"{position.ms}:{position.job}")


def _parse_cursor(before: str | None) -> _Position | None:
    if before is None:
        return None
    match = _CURSOR.fullmatch(before)
    if match is None:
        raise RequestError(
            "Invalid cursor",
            {"path": "before", "expected": "the `next` of the previous page", "fix": "leave it out"},
        )
    return _Position(int(match[1]), match[2])


def _read_older(client: Redis, keys: Keys, position: _Position | None) -> list[_Position]:
    """Return the next PAGE_SIZE jobs after a position. Jobs of one millisecond are ordered by id."""
    found: list[_Position] = []
    skip = 0
    highest: str | int = "+inf" if position is None else position.ms
    while len(found) < PAGE_SIZE:
        some: Any = client.zrange(
            keys("jobs"),
            highest,
            "-inf",
            desc=True,
            byscore=True,
            withscores=True,
            offset=skip,
            num=PAGE_SIZE,
        )
        positions = [_Position(int(ms), member.decode()) for member, ms in some]
        found += [each for each in positions if position is None or each < position]
        skip += len(positions)
        if len(positions) < PAGE_SIZE:
            break
    return found[:PAGE_SIZE]


def _read_summaries(client: Redis, keys: Keys, page: list[_Position]) -> list[JobSummary | None]:
    pipe = client.pipeline(transaction=False)
    for _, job in page:
        pipe.hmget(keys("job", job), HEADER_FIELDS)
        pipe.hmget(keys("summary", job), [*HEADER_FIELDS, "state", "ended_at"])
        pipe.hmget(keys("submitted", job), ["name", "agent", "options"])
    replies = pipe.execute() if page else []
    return [
        build_summary(job, ms, *replies[3 * number : 3 * number + 3]) for number, (ms, job) in enumerate(page)
    ]
