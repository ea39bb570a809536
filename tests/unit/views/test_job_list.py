"""The list of jobs, page by page, on a real server without anyone who works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridq.client import Client
from gridq.errors import AmbiguousJob, JobNotFound, RequestError
from gridq.protocol.states import JobState
from gridq.views import job_list
from gridq.views.job_ids import find_job
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,)})
    with Client(config=config) as started:
        yield started


ECHO = {"root": stage("bench_echo")}


def submit(client: Client, job: str, agent: str = "ann") -> str:
    return client.submit(ECHO, 1, job=job, agent=agent, wait_for_seat=True)


def pages(client: Client, limit: int, **filters: str) -> list[list[str]]:
    found, before = [], None
    while True:
        page = job_list.list_jobs(client.redis, client.keys, limit, before=before, **filters)
        found.append([one.job for one in page.jobs])
        if page.after is None:
            return found
        before = page.after


def test_pages_have_no_gaps_while_jobs_come_and_go(client: Client) -> None:
    for number in range(5):
        submit(client, f"j{number}")
    # Jobs of one millisecond are told apart by their ids.
    client.redis.zadd(client.keys("jobs"), {f"j{number}": 1000 for number in range(5)})
    first = job_list.list_jobs(client.redis, client.keys, 2)
    assert [one.job for one in first.jobs] == ["j4", "j3"]
    submit(client, "new")
    client.redis.zrem(client.keys("jobs"), "j3")
    second = job_list.list_jobs(client.redis, client.keys, 2, before=first.after)
    assert [one.job for one in second.jobs] == ["j2", "j1"]
    assert pages(client, 2) == [["new", "j4"], ["j2", "j1"], ["j0"]]


def test_a_page_reads_a_bounded_number_of_jobs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "PAGE_SIZE", 2)
    monkeypatch.setattr(job_list, "MAX_SCANNED", 4)
    for number in range(6):
        submit(client, f"j{number}", "bob" if number else "ann")
        client.redis.zadd(client.keys("jobs"), {f"j{number}": number})
    assert pages(client, 5, agent="ann") == [[], ["j0"]]
    assert pages(client, 5, agent="nobody") == [[], []]


def test_more_jobs_in_one_millisecond_than_a_page_are_listed_completely(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_list, "PAGE_SIZE", 2)
    for number in range(7):
        submit(client, f"j{number}")
    client.redis.zadd(client.keys("jobs"), {f"j{number}": 1000 for number in range(7)})
    assert pages(client, 3) == [["j6", "j5", "j4"], ["j3", "j2", "j1"], ["j0"]]


def test_the_state_filters_the_list(client: Client) -> None:
    submit(client, "j1")
    submit(client, "j2")
    client.cancel("j1")
    page = job_list.list_jobs(client.redis, client.keys, 5, JobState.CANCELLED)
    assert [(one.job, one.state) for one in page.jobs] == [("j1", JobState.CANCELLED)]


@pytest.mark.parametrize("before", ["", "x", "1:", ":a", "-1:a", "1:a b", "99999999999999999:a", "1.5:a"])
def test_an_invalid_cursor_is_refused(client: Client, before: str) -> None:
    with pytest.raises(RequestError, match="cursor"):
        job_list.list_jobs(client.redis, client.keys, before=before)


def test_an_agent_finds_only_its_own_jobs_by_prefix(client: Client) -> None:
    for job, agent in (("abcd-1", "ann"), ("abcd-2", "bob"), ("abcd-3", "bob")):
        submit(client, job, agent)
    assert find_job(client.redis, client.keys, "abcd", agent="ann") == "abcd-1"
    with pytest.raises(AmbiguousJob) as caught:
        find_job(client.redis, client.keys, "abcd", agent="bob")
    assert "abcd-1" not in str(caught.value)
    for given in ("abcd-2", "abcd-3", "abc", "abcd-9"):
        with pytest.raises(JobNotFound):
            find_job(client.redis, client.keys, given, agent="ann")
    assert find_job(client.redis, client.keys, "abcd-2", agent="bob") == "abcd-2"
    client.cancel("abcd-1")  # its record alone is left
    assert find_job(client.redis, client.keys, "abcd-1", agent="ann") == "abcd-1"
