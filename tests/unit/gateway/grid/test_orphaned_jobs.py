"""Jobs that nobody waits for: cancelled once the server answers, looked for again where there are none."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

import pytest

from gridq.errors import BrokerUnreachable, GridError, JobNotFound, SeatNotFound
from gridq.gateway.grid import orphaned_jobs
from gridq.gateway.grid.orphaned_jobs import MAX_LOOKUPS, OrphanedJobs

AWAY, NOT_THERE = BrokerUnreachable("away"), JobNotFound("not there")


class Server:
    """Answers each cancel of a job with the next of its `faults`, and then well."""

    def __init__(self, **faults: Iterable[GridError]) -> None:
        self.faults = {job: list(each) for job, each in faults.items()}
        self.cancels: defaultdict[str, int] = defaultdict(int)

    async def cancel(self, job: str) -> bool:
        self.cancels[job] += 1
        if self.faults.get(job):
            raise self.faults[job].pop(0)
        return True


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_jobs, "RETRY_SECONDS", 0.0)


def end(server: Server, *jobs: str) -> None:
    """Have all of `jobs` cancelled, until nothing is left to do."""

    async def main() -> None:
        jobs_to_end = OrphanedJobs(server.cancel)
        for job in jobs:
            jobs_to_end.add(job)
        while len(jobs_to_end):
            await asyncio.sleep(0)
        await jobs_to_end.close()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_each_orphaned_job_is_cancelled_once() -> None:
    server = Server()
    end(server, "a", "b")
    assert server.cancels == {"a": 1, "b": 1}


def test_cancelling_is_retried_until_the_server_answers() -> None:
    server = Server(a=[AWAY] * 20)
    end(server, "a", "b")
    assert server.cancels == {"a": 21, "b": 1}


def test_a_job_admitted_a_little_later_is_cancelled() -> None:
    server = Server(a=[AWAY, NOT_THERE, AWAY, NOT_THERE])
    end(server, "a")
    assert server.cancels == {"a": 5}


def test_a_job_that_never_comes_is_forgotten() -> None:
    server = Server(a=[NOT_THERE] * 20)
    end(server, "a", "b")
    assert server.cancels == {"a": MAX_LOOKUPS, "b": 1}


def test_an_error_with_one_job_does_not_affect_others() -> None:
    server = Server(a=[SeatNotFound("whatever")])
    end(server, "a", "b")
    assert server.cancels == {"a": 1, "b": 1}


def test_the_number_of_remembered_jobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_jobs, "MAX_JOBS", 2)
    server = Server()
    end(server, "a", "b", "c")
    assert server.cancels == {"b": 1, "c": 1}


def test_close_tries_once_more_and_accepts_no_job() -> None:
    server = Server(a=[AWAY] * 20)

    async def main() -> None:
        jobs = OrphanedJobs(server.cancel)
        jobs.add("a")
        await jobs.close()
        jobs.add("b")
        await asyncio.sleep(0)

    asyncio.run(main())
    assert server.cancels == {"a": 1}
