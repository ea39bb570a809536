"""`gridq job` and `gridq cancel` by the beginning of an id; options of `gridq run` that bear on the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gridq import cli
from gridq.cli.commands.jobs import format_attempts, format_error, format_header
from gridq.client import Client
from gridq.config.settings import settings
from gridq.errors import AmbiguousJob, JobNotFound
from gridq.protocol.models import HistoryRow
from gridq.protocol.states import JobState
from gridq.submission.admission import Admission
from gridq.views.jobs import JobView, StageView
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH, BenchProfile

ECHO: dict[str, Any] = {"root": {"op": "Stage", "id": "bench_echo"}}


def gridq(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


@pytest.fixture
def client(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("GRIDQ_PROFILES", BENCH)
    settings.cache_clear()
    with Client(config=grid_env.settings) as made:
        made._admission = Admission(made.scripts, made.config, {"bench": BenchProfile()})
        yield made


def submit(client: Client, *jobs: str) -> None:
    for job in jobs:
        client.submit(ECHO, 1, job=job, wait_for_seat=True)


def test_a_job_is_found_by_the_beginning_of_its_id(client: Client) -> None:
    submit(client, "5ab7c2-1", "5ab7d3-2")
    with pytest.raises(AmbiguousJob, match=r"2 jobs .* 5ab7c2-1, 5ab7d3-2"):
        client.find("5ab7")
    submit(client, "5ab7")
    assert client.find("5ab7c") == "5ab7c2-1"
    assert client.find("5ab7") == "5ab7"  # one is called just so
    client.cancel("5ab7d3-2")
    assert client.find("5ab7d") == "5ab7d3-2"  # also when it has ended
    for unknown in ("5ab", "5ab8", "*", "5ab?", "[5]ab7c", "", "ü"):
        with pytest.raises(JobNotFound):
            client.find(unknown)


def test_job_and_cancel_accept_the_beginning_of_an_id(client: Client) -> None:
    submit(client, "abcd-1", "abce-2", "abce-3")
    assert "job       abcd-1" in gridq("job", "abcd").stdout
    done = gridq("cancel", "abcd")
    assert (done.exit_code, done.stdout) == (0, "abcd-1  cancelled\n")
    done = gridq("cancel", "abcd")
    assert (done.exit_code, done.stdout) == (0, "abcd-1  ended before: cancelled\n")


def test_an_ambiguous_id_cancels_nothing(client: Client) -> None:
    submit(client, "abcd-1", "abce-2", "abce-3")
    for command in ("job", "cancel"):
        done = gridq(command, "abce")
        assert done.exit_code == 2
        assert "error: job.ambiguous: The ids of 2 jobs begin with 'abce'" in done.stderr
        assert "abce-2, abce-3" in done.stderr
    done = gridq("cancel", "abcd", "abce", "nobody", "--json")
    assert done.exit_code == 5
    assert json.loads(done.stdout) == [
        {"job": "abcd-1", "outcome": "cancelled"},
        {"job": "abce", "outcome": "ambiguous"},
        {"job": "nobody", "outcome": "unknown"},
    ]
    assert client.status("abce-2") is JobState.RUNNING


@pytest.fixture
def graph(tmp_path: Path) -> str:
    file = tmp_path / "echo.json"
    file.write_text(json.dumps(ECHO))
    return str(file)


def test_run_with_a_key_twice_is_one_job(client: Client, graph: str) -> None:
    options = ("--wait-for-seat", "--timeout", "0", "--idempotency-key", "k")
    for _ in range(2):
        assert gridq("run", graph, "--input", "1", *options).exit_code == 124
    assert len(client.jobs()) == 1
    done = gridq("run", graph, "--input", "2", *options)
    assert done.exit_code == 2
    assert "job.idempotency_conflict" in done.stderr
    assert client.jobs()[0].job in done.stderr


def test_run_with_a_queue_timeout(client: Client, graph: str) -> None:
    assert gridq("run", graph, "--wait-for-seat", "--timeout", "0", "--queue-timeout", "2m").exit_code == 124
    (job,) = client.jobs()
    assert client.redis.hget(client.keys("job", job.job), "queue_timeout") == b"120000"
    for wrong in ("soon", "0", "30d"):
        done = gridq("run", graph, "--queue-timeout", wrong)
        assert done.exit_code == 2
        assert "--queue-timeout" in done.stderr


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((0, 0, 0, 0), ""),
        ((1, 0, 0, 0), ""),
        ((3, 0, 0, 0), "3"),
        ((1, 0, 1, 0), "1 (1 lost)"),
        ((6, 2, 1, 2), "6 (2 failed, 1 lost, 2 died)"),
    ],
)
def test_attempts_are_counted_by_outcome(counts: tuple[int, int, int, int], text: str) -> None:
    attempts, failures, losses, deaths = counts
    stage = StageView("root", "s", "q", attempts=attempts, failures=failures, losses=losses, deaths=deaths)
    assert format_attempts(stage) == text


def test_an_error_lists_its_attempts() -> None:
    details = {"attempts": 4, "failures": 3, "losses": 1, "deaths": "many", "dropped_by": "ann@desk"}
    lines = format_error({"code": "stage.failed", "message": "no", "details": details})
    assert lines == [
        "error     stage.failed: no",
        "by        ann@desk",
        "after     4 attempts, 3 failures, 1 loss",
    ]


def test_a_job_names_once_what_had_no_effect() -> None:
    place = {"path": "root", "stage": "s", "queue": "q", "worker": "w"}
    rows = [HistoryRow(**place, dropped_fields=fields) for fields in (["seed"], [], ["seed", "user"])]
    view = JobView("j", JobState.DONE, rows=rows)
    assert [line for line in format_header(view) if "seed" in line] == ["dropped   seed, user"]
    view.rows = []
    assert not any(line.startswith("without") for line in format_header(view))
