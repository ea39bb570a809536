"""The commands that show and operate a grid of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.client import Client
from gridq.protocol.states import JobState
from tests.builders import retry, seq, stage
from tests.integration.test_cli import Shell, error, shell
from tests.waiting import wait_for

__all__ = ["shell"]


@pytest.fixture
def client(shell: Shell) -> Iterator[Client]:
    with Client(config=shell.config) as found:
        yield found


def run_json(shell: Shell, *arguments: str) -> Any:
    return json.loads(shell(*arguments, "--json").stdout)


def test_a_job_is_named_after_its_file_and_listed(shell: Shell) -> None:
    graph = shell.graph(stage("bench_echo"))
    done = run_json(shell, "run", graph, "--input", "[1]")
    (name,) = [job["name"] for job in run_json(shell, "jobs", "--state", "done") if job["job"] == done["job"]]
    assert f"/{name}.json" in graph
    lines = shell("jobs").stdout.splitlines()
    assert lines[0].split() == ["job", "name", "state", "steps", "ago", "took"]
    assert any(line.split()[:4] == [done["job"], name, "done", "1/1"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_job_is_shown_with_its_stages_on_one_axis(shell: Shell) -> None:
    graph = shell.graph(seq(stage("bench_sleep", ms=300), stage("bench_sleep", ms=300), stage("bench_fail")))
    failed = run_json(shell, "run", graph)
    done = shell("job", failed["job"])
    assert done.returncode == 0
    bars = [line for line in done.stdout.splitlines() if "█" in line and line.startswith("bench_")]
    assert len(bars) == 3
    assert bars[0].index("█") < bars[1].index("█") < bars[2].index("█")
    for part in ("state     failed, 2 of 3 steps", "error     stage.failed", "at        root.stages[2]"):
        assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    view = run_json(shell, "job", failed["job"])
    assert [one["state"] for one in view["stages"]] == ["done", "done", "failed"]
    assert view["error"]["code"] == "stage.failed"
    assert view["submitted"] <= view["stages"][0]["started"] <= view["ended"]


def test_a_waiting_job_shows_its_reason_and_can_be_cancelled(shell: Shell, client: Client) -> None:
    graph = {"root": stage("bench_echo", slug="rare")}
    jobs = [client.submit(graph, 1, wait_for_seat=True) for _ in range(2)]
    shown = shell("job", jobs[0]).stdout
    assert "waits for a seat of bench:rare to run bench_echo: no live seat serves it" in shown
    assert "░" in shown
    (queue,) = [each for each in run_json(shell, "queues") if each["queue"] == "bench:rare"]
    assert (queue["pending"]["interactive"], queue["seats"]) == (2, [])
    seen = shell("queues")
    assert "bench:rare has waiting stages but no live seat" in seen.stderr
    assert max(map(len, seen.stdout.splitlines())) <= 80
    done = shell("cancel", *jobs)
    assert (done.returncode, done.stdout) == (0, "".join(f"{job}  cancelled\n" for job in jobs))
    assert client.status(jobs[0]) is JobState.CANCELLED
    assert run_json(shell, "cancel", jobs[0]) == [{"job": jobs[0], "outcome": "ended before: cancelled"}]


def test_an_unknown_job_is_code_5(shell: Shell) -> None:
    for command in ("job", "cancel"):
        done = shell(command, "nope")
        assert done.returncode == 5
        assert error(done).startswith("job.not_found: ")


def test_every_error_is_a_document_on_stdout_with_json(shell: Shell) -> None:
    for code, arguments in (
        (2, ["jobs", "--state", "runing"]),
        (2, ["job"]),
        (3, ["validate", shell.graph(stage("bench_ecko"))]),
        (4, ["run", shell.graph(stage("bench_echo", slug="rare"))]),
        (5, ["job", "nope"]),
    ):
        done = shell(*arguments, "--json")
        assert done.returncode == code
        record = json.loads(done.stdout)["error"]
        assert record["code"]
        assert done.stderr.strip()
        assert "wait_for_seat" not in done.stdout + done.stderr


def test_a_time_out_says_what_the_job_waits_for_and_does_not_end_it(shell: Shell, client: Client) -> None:
    graph = shell.graph(stage("bench_echo", slug="rare"))
    done = shell("run", graph, "--wait-for-seat", "--timeout", "0.2", "--json")
    assert done.returncode == 124
    details = json.loads(done.stdout)["error"]["details"]
    assert details["waits_for"].startswith("a seat of bench:rare to run bench_echo")
    assert "it waits for a seat of bench:rare" in error(done)
    assert client.status(details["job"]) is JobState.RUNNING
    assert shell("cancel", details["job"]).returncode == 0


def test_watch_prints_what_the_job_waits_for(shell: Shell) -> None:
    graph = shell.graph(stage("bench_echo", slug="rare"))
    done = shell("run", graph, "--wait-for-seat", "--watch", "--timeout", "5")
    waits, last = done.stderr.splitlines()
    assert waits.startswith("waits   ")
    assert "for a seat of bench:rare to run bench_echo: no live seat serves it" in waits
    assert shell("cancel", last.split()[4]).returncode == 0


def test_explain_shows_each_step_and_its_seats(shell: Shell) -> None:
    graph = shell.graph(
        seq(stage("bench_echo"), stage("format_json"), stage("parse_json"), stage("bench_echo", slug="rare"))
    )
    report = run_json(shell, "explain", graph)
    first, pure, last = report["steps"]
    assert [len(step["stages"]) for step in report["steps"]] == [1, 2, 1]
    assert [step["after"] for step in report["steps"]] == [[], [0], [1]]
    assert first["seats"][0].endswith(".bench")
    assert pure["queue"] == "gridq:pure"
    assert last["seats"] == []
    assert last["no_seat_reason"] == "the live seats of bench serve bench:any"
    done = shell("explain", graph)
    assert done.returncode == 0
    assert "a slot or router" in done.stdout  # the pure step follows another
    assert "No seat can run bench:rare now (step 2): the live seats of bench" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if "─" in line) <= 80


def test_seats_and_models_are_listed(shell: Shell) -> None:
    seats = {seat["seat"].partition(".")[2].partition("-")[0]: seat for seat in run_json(shell, "seats")}
    assert set(seats) == {"bench", "local", "router"}
    assert seats["bench"]["concurrency"] == 2
    assert seats["bench"]["budget"] is None
    assert max(map(len, shell("seats").stdout.splitlines())) <= 80
    (offer,) = run_json(shell, "models")
    assert (offer["queue"], offer["concurrency"]) == ("bench:any", 2)
    assert "bench:any" in shell("models").stdout


def test_a_drained_seat_takes_no_work_until_undone(shell: Shell, client: Client) -> None:
    running = client.submit({"root": stage("bench_sleep", ms=1500)}, {})
    wait_for(lambda: [seat for seat in client.workers() if seat.busy])
    done = shell("drain", "bench")
    assert done.returncode == 0
    assert "takes no more work until: gridq drain " in done.stdout
    try:
        assert client.result(running, 20) is not None  # what runs goes on
        (seat,) = [seat for seat in client.workers() if seat.kind == "bench"]
        assert (seat.state, seat.reason) == ("draining", "an operator drains it")
        assert "draining since" in shell("seats").stdout
        refused = shell("run", shell.graph(stage("bench_echo")))
        assert refused.returncode == 4
        assert "an operator drains it" in error(refused)
        waiting = client.submit({"root": stage("bench_echo")}, 7, wait_for_seat=True)
        client.scripts.register(  # as its worker does when it comes back from a pause
            seat.seat, seat.incarnation, host="", concurrency=2, queues=seat.queues, record_ttl_ms=60_000,
            worker=seat.worker,
        )  # fmt: skip
        assert not client.wait(waiting, 2.5)
        assert "is draining: an operator drains it" in client.waits_for(waiting)
    finally:
        undone = shell("drain", seat.seat, "--undo")
    assert (undone.returncode, undone.stdout) == (0, f"{seat.seat} takes work again\n")
    assert client.result(waiting, 20) == 7


def test_only_a_live_seat_is_drained(shell: Shell) -> None:
    done = shell("drain", "bensh")
    assert done.returncode == 4
    assert error(done).startswith("seat.none_live: No live seat is called 'bensh'")


def test_an_empty_grid_is_named_by_server_and_prefix(shell: Shell) -> None:
    for command in ("workers", "seats", "jobs", "models"):
        done = shell(command, GRIDQ_PREFIX="nobody:")
        assert (done.returncode, done.stdout) == (0, "")
        assert "redis://127.0.0.1:" in done.stderr
        assert "under the prefix 'nobody:'" in done.stderr
        assert json.loads(shell(command, "--json", GRIDQ_PREFIX="nobody:").stdout) == []


def test_a_shell_completes_jobs_and_seats(shell: Shell, client: Client) -> None:
    def completed(words: str) -> list[str]:
        env = {"_GRIDQ_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()))}
        return shell(**env).stdout.split()

    assert any(name.endswith(".bench") for name in completed("gridq drain "))
    assert completed("gridq jobs --state ")[:2] == ["queued", "running"]
    job = client.submit({"root": stage("bench_echo")}, 1)
    assert job in completed("gridq job ")


def test_a_quarantined_stage_waits_for_an_operator(shell: Shell, client: Client) -> None:
    job = client.submit({"root": retry(stage("bench_die"), 5)}, 1)
    wait_for(client.quarantined)
    shown = shell("job", job[:8]).stdout
    assert "waits for an operator: stage bench_die killed the process that ran it twice" in shown
    (aside,) = run_json(shell, "quarantine")
    assert (aside["job"], aside["path"], aside["deaths"]) == (job, "root.stage", 2)
    released = shell("quarantine", "release", aside["job"], aside["path"])
    assert released.stdout == f"{aside['job']}  root.stage  released\n"
    wait_for(lambda: [each.attempts for each in client.quarantined()] == [4])
    assert run_json(shell, "quarantine", "drop", aside["job"], str(aside["step"]))["outcome"] == "dropped"
    failed = run_json(shell, "job", aside["job"])
    assert failed["error"]["code"] == "stage.quarantined"
    assert [(one["attempts"], one["deaths"]) for one in failed["stages"]] == [(4, 2)]
