"""The program `gridq` through a gateway, without access to the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridq.cli.exit_codes import EPILOG
from gridq.client import BrokerClient
from gridq.limits import api_keys
from gridq.protocol.states import JobState
from tests.acceptance.homes import GRIDQ
from tests.builders import seq, stage
from tests.chaos.proxy import Proxy
from tests.fakes.bench_profile import BENCH
from tests.gateways import serving
from tests.integration.client.conftest import Place
from tests.waiting import wait_for

NOWHERE = "redis://127.0.0.1:1/0"
SLEEP = {"root": stage("bench_sleep", ms=60_000)}


class Shell:
    """Runs `gridq` in a home of its own, where the server cannot be reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
        self.env = {**quiet, "GRIDQ_BROKER_URL": NOWHERE, "GRIDQ_HOME": str(folder), "COLUMNS": "120"}

    def graph(self, root: dict[str, Any]) -> str:
        file = self.folder / "graph.json"
        file.write_text(json.dumps({"root": root}))
        return str(file)

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*GRIDQ, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.env, **env},
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*GRIDQ, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_graph_runs_and_its_progress_is_printed(shell: Shell, place: Place) -> None:
    graph = shell.graph(seq(stage("bench_echo"), stage("text_template", template="Hello {{name}}")))
    done = shell("run", graph, "-i", '{"name": "Ada"}', "--watch", "--grid", place.url)
    assert (done.returncode, done.stdout) == (0, "Hello Ada\n")
    assert [line.split()[:2] for line in done.stderr.splitlines()] == [
        ["done", "bench_echo"],
        ["done", "text_template"],
    ]


def test_the_option_takes_precedence_over_the_variable(shell: Shell, place: Place) -> None:
    graph = shell.graph(stage("bench_echo"))
    result = shell("run", graph, "-i", "1", "--json", GRIDQ_URL=f"http://127.0.0.1:1,{place.url}")
    assert json.loads(result.stdout)["result"] == 1
    assert [row["stage"] for row in json.loads(result.stdout)["rows"]] == ["bench_echo"]
    done = shell("run", graph, "-i", "2", "--grid", place.url, GRIDQ_URL="http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (0, "2\n")
    server = place.config.broker_url.get_secret_value()
    env = {"GRIDQ_PREFIX": place.config.prefix, "GRIDQ_PROFILES": BENCH, "GRIDQ_URL": "http://127.0.0.1:1"}
    done = shell("run", graph, "-i", "3", "--grid", server, **env)
    assert (done.returncode, done.stdout) == (0, "3\n")


def test_listings_by_a_gateway_equal_those_of_the_server(shell: Shell, place: Place) -> None:
    job = place.grid.client.run({"root": stage("bench_echo")}, 1, timeout=30) and place.grid.client.jobs(1)[0]
    listed = json.loads(shell("jobs", "--json", "-n", "5", "--grid", place.url).stdout)
    assert listed[0] == json.loads(json.dumps(job.to_json()))
    one = json.loads(shell("job", job.job[:18], "--json", "--grid", place.url).stdout)
    known = json.loads(json.dumps(place.grid.client.view(job.job).to_json()))
    assert {**one, "now": 0} == {**known, "now": 0, "waits_for": ""}
    seats = {each["seat"] for each in json.loads(shell("seats", "--json", GRIDQ_URL=place.url).stdout)}
    assert seats == {seat.seat for seat in place.grid.client.seats()}
    workers = shell("workers", "--grid", place.url).stdout
    assert "m.bench" in workers
    assert "m.router" not in workers
    assert "bench:any" in shell("models", "--grid", place.url).stdout
    assert "bench:any" in shell("queues", "--grid", place.url).stdout
    assert "No stage is in quarantine" in shell("quarantine", GRIDQ_URL=place.url).stderr
    assert "No stage is in quarantine" in shell("quarantine", "--grid", place.url).stderr
    for verb in ("release", "drop"):
        for words in (
            [verb, "nobody", "root", "--grid", place.url],
            ["--grid", place.url, verb, "nobody", "0"],
        ):
            refused = shell("quarantine", *words)
            assert (refused.returncode, refused.stderr.partition(": ")[2][:13]) == (5, "job.not_found"), (
                refused.stderr
            )


def test_jobs_are_cancelled(shell: Shell, place: Place) -> None:
    job = place.grid.client.submit(SLEEP)
    done = shell("cancel", job[:20], "none-such", "--grid", place.url)
    assert (done.returncode, done.stdout) == (5, f"{job}  cancelled\nnone-such  unknown\n")
    assert place.grid.client.status(job) is JobState.CANCELLED


def test_run_waits_for_a_gateway_that_is_away(shell: Shell, place: Place) -> None:
    port = int(place.url.rpartition(":")[2])
    with Proxy(("127.0.0.1", port)) as proxy:
        graph = shell.graph(seq(stage("bench_echo"), stage("bench_sleep", ms=1500)))
        program = shell.start("run", graph, "-i", '{"ms": 1500}', "--watch", "--grid",
                              f"http://127.0.0.1:{proxy.port}")  # fmt: skip
        assert program.stderr is not None
        assert program.stderr.readline().startswith("done    bench_echo")
        [running] = place.grid.client.jobs(5, "running")
        proxy.address = ("127.0.0.1", 1)
        proxy.cut(reset=True)
        wait_for(lambda: place.grid.client.status(running.job) is JobState.DONE)
        assert program.poll() is None
        proxy.address = ("127.0.0.1", port)
        out, err = program.communicate(timeout=60)
        assert (program.returncode, json.loads(out)) == (0, {"ms": 1500})
        assert err.split()[:2] == ["done", "bench_sleep"]


def test_ctrl_c_cancels_the_job(shell: Shell, place: Place) -> None:
    graph = shell.graph(seq(stage("bench_echo"), SLEEP["root"]))
    program = shell.start("run", graph, "-i", '{"ms": 60000}', "--grid", place.url, "--watch")
    assert program.stderr is not None
    assert program.stderr.readline().startswith("done    bench_echo")
    running = wait_for(lambda: place.grid.client.jobs(5, "running"))
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (130, "")
    assert err.splitlines()[-1] == f"The job {running[0].job} was cancelled"
    assert place.grid.client.status(running[0].job) is JobState.CANCELLED


@pytest.mark.parametrize(
    ("root", "more", "code", "begins"),
    [
        (stage("bench_eco"), [], 3, "stage.not_found"),
        (stage("bench_echo", slug="rare"), [], 4, "seat.none_live"),
        (stage("bench_fail"), [], 1, "stage.failed"),
        (stage("bench_sleep", ms=60_000), ["--timeout", "0.3"], 124, "job.wait_timeout"),
        (stage("bench_echo"), ["--stages", "."], 2, "config.invalid"),
    ],
)
def test_each_failure_has_its_exit_code(
    root: dict[str, Any], more: list[str], code: int, begins: str, shell: Shell, place: Place
) -> None:
    done = shell("run", shell.graph(root), *more, "--grid", place.url)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {begins}"), done.stderr
    assert f"{code} " in EPILOG
    for summary in place.grid.client.jobs(5, "running"):
        place.grid.client.cancel(summary.job)


@pytest.mark.parametrize(
    ("url", "begins"),
    [
        ("http://127.0.0.1:1", "error: gateway.unreachable"),
        ("redis://127.0.0.1:1/0", "error: broker.unreachable"),
        ("ftp://h", "error: config.invalid"),
        ("http://ann:secret@h", "error: config.invalid"),
    ],
)
def test_an_invalid_grid_is_one_line_of_error(url: str, begins: str, shell: Shell) -> None:
    done = shell("run", shell.graph(stage("bench_echo")), "--grid", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(begins), done.stderr
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


def test_the_key_comes_from_the_environment(shell: Shell, place: Place) -> None:
    config = place.config.model_copy(
        update={"prefix": f"{place.config.prefix}k:"[:20].replace(":", "") + ":"}
    )
    with BrokerClient(config=config) as server, serving(config) as gateway:
        key = api_keys.create(server.redis, server.keys, "ann")[1]
        graph = shell.graph(stage("bench_echo"))
        refused = shell("run", graph, "--grid", gateway.url)
        assert (refused.returncode, refused.stderr.partition(": ")[2][:16]) == (6, "auth.key_missing")
        run = ["run", graph, "--wait-for-seat", "--timeout", "0", "--json", "--grid", gateway.url]
        late = shell(*run, GRIDQ_KEY=key)
        assert late.returncode == 124, late.stderr
        [job] = server.jobs()
        assert job.agent == "ann"
        # A key that may submit but not read is refused; that is not the job's own error.
        blind = api_keys.create(server.redis, server.keys, "ann", scopes=("submit",))[1]
        done = shell(*run, GRIDQ_KEY=blind)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (6, "auth.scope")
        for key_name in server.redis.scan_iter(f"{config.prefix}*", count=1000):
            server.redis.unlink(key_name)


def test_completion_asks_the_gateway(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from gridq.cli import completion
    from gridq.config.settings import settings

    job = place.grid.client.submit(SLEEP)
    monkeypatch.setenv("GRIDQ_BROKER_URL", NOWHERE)
    offered: dict[str, Callable[[str], list[Any]]] = {
        job: completion.complete_job_ids,
        "m.bench": completion.complete_seat_names,
    }
    for url, found in ((place.url, True), ("http://127.0.0.1:1", False)):
        monkeypatch.setenv("GRIDQ_URL", url)
        settings.cache_clear()
        for name, ask in offered.items():
            assert (name in [each for each, _ in ask(name[:5])]) is found
    settings.cache_clear()
    place.grid.client.cancel(job)
