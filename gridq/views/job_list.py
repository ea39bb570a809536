"""The list of jobs: which there are, page by page, the latest first."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from redis import Redis

from gridq.errors import RequestError
from gridq.protocol.states import JobState
from gridq.store.keys import Keys
from gridq.views.jobs import HEAD, JobSummary, summary_of

PAGE = 200
"""Jobs looked at in one round trip."""

LOOKED_AT = 10_000
"""Jobs looked at for one page at most: where few of them are asked for, the rest is left to the next page."""

_CURSOR = re.compile(r"(\d{1,16}):([A-Za-z0-9_.-]{1,128})")


class JobPage(NamedTuple):
    """Jobs, and the cursor of those after them; None: there are no more."""

    jobs: list[JobSummary]
    after: str | None


class _Place(NamedTuple):
    """Where a job stands in the list: when it was submitted, ms, and its id."""

    ms: int
    job: str


def jobs(
    client: Redis,
    keys: Keys,
    limit: int = 20,
    state: JobState | None = None,
    *,
    agent: str | None = None,
    before: str | None = None,
) -> JobPage:
    """The jobs that are known, the latest first: up to `limit`, of those in `state` and of `agent` where that
    is given. `before` is the `after` of the page before. RequestError: it is none.

    A page may hold fewer, even none, and still have one after it: LOOKED_AT bounds what one call reads.
    """
    place = _cursor(before)
    found: list[JobSummary] = []
    looked = 0
    while looked < LOOKED_AT:
        page = _older(client, keys, place)
        for summary, at in zip(_summaries(client, keys, page), page, strict=True):
            place = at
            looked += 1
            if summary is None or state not in (None, summary.state) or agent not in (None, summary.agent):
                continue
            found.append(summary)
            if len(found) == limit:
                return JobPage(found, f"{place.ms}:{place.job}")
        if len(page) < PAGE:
            return JobPage(found, None)
    return JobPage(found, None if place is None else f"{place.ms}:{place.job}")


def _cursor(before: str | None) -> _Place | None:
    if before is None:
        return None
    match = _CURSOR.fullmatch(before)
    if match is None:
        raise RequestError(
            "The cursor is none",
            {"path": "before", "expected": "what `next` of the page before says", "fix": "leave it out"},
        )
    return _Place(int(match[1]), match[2])


def _older(client: Redis, keys: Keys, place: _Place | None) -> list[_Place]:
    """The next PAGE jobs after `place`, which need not be there any more; jobs of one millisecond are in the
    order of their ids.
    """
    found: list[_Place] = []
    skip = 0
    highest: str | int = "+inf" if place is None else place.ms
    while len(found) < PAGE:
        some: Any = client.zrange(
            keys("jobs"), highest, "-inf", desc=True, byscore=True, withscores=True, offset=skip, num=PAGE
        )
        places = [_Place(int(ms), member.decode()) for member, ms in some]
        found += [each for each in places if place is None or each < place]
        skip += len(places)
        if len(places) < PAGE:
            break
    return found[:PAGE]


def _summaries(client: Redis, keys: Keys, page: list[_Place]) -> list[JobSummary | None]:
    look = client.pipeline(transaction=False)
    for _, job in page:
        look.hmget(keys("job", job), HEAD)
        look.hmget(keys("summary", job), [*HEAD, "state", "ended_at"])
        look.hmget(keys("submitted", job), ["name", "agent", "options"])
    replies = look.execute() if page else []
    return [
        summary_of(job, ms, *replies[3 * number : 3 * number + 3]) for number, (ms, job) in enumerate(page)
    ]
