"""The program `gridq` on a grid of real processes: arguments, output and exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import secrets
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gridq.client import Client
from gridq.config.settings import Settings
from gridq.protocol.states import JobState
from tests.acceptance.homes import GRIDQ
from tests.builders import seq, stage
from tests.fakes.bench_profile import BENCH
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses


@dataclass
class Shell:
    """Runs `gridq` with a grid's settings in its environment, and writes graphs to files in its folder."""

    config: Settings
    env: dict[str, str]
    folder: Path

    def graph(self, root: dict[str, Any]) -> str:
        file = self.folder / f"{secrets.token_hex(4)}.json"
        file.write_text(json.dumps({"description": "a test", "version": "0.1.0", "root": root}))
        return str(file)

    def __call__(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*GRIDQ, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.env, **env},
            check=False,
        )

    def start(self, *arguments: str, stderr: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*GRIDQ, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=self.env,
        )


@pytest.fixture(scope="module")
def shell(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A grid with a router and the seats `local` and `bench`."""
    folder = tmp_path_factory.mktemp("cli")
    config = Settings(
        broker_url=server.url, prefix=f"c{secrets.token_hex(3)}:", home=folder / "home", profiles=(BENCH,)
    )
    env = {
        **os.environ,
        "GRIDQ_BROKER_URL": server.url,
        "GRIDQ_PREFIX": config.prefix,
        "GRIDQ_HOME": str(config.home),
        "GRIDQ_PROFILES": BENCH,
        "COLUMNS": "80",
        "TERM": "xterm",
    }
    with GridProcesses(config, ["local", "bench"], folder=folder / "logs", env={"GRIDQ_DRAIN": "1"}):
        yield Shell(config, env, folder)
    client = Client(config=config)
    for key in client.redis.scan_iter(f"{config.prefix}*", count=1000):
        client.redis.unlink(key)
    client.close()


@pytest.fixture
def client(shell: Shell) -> Iterator[Client]:
    found = Client(config=shell.config)
    yield found
    found.close()


def error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error, which must be one line."""
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:], done.stderr
    assert "Traceback" not in done.stderr
    return lines[-1].removeprefix("error: ")


def test_text_is_printed_unquoted(shell: Shell) -> None:
    graph = shell.graph(stage("text_template", template="{{greeting}}, {{name}}"))
    done = shell("run", graph, "--input", '{"greeting": "Grüß dich", "name": "Ada"}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "Grüß dich, Ada\n", "")


def test_other_values_are_printed_as_json(shell: Shell) -> None:
    file = shell.folder / "in.json"
    file.write_text('{"a": [1, null]}')
    done = shell("run", shell.graph(stage("bench_echo")), "-i", f"@{file}")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"a": [1, None]})


def test_graph_or_input_come_from_stdin(shell: Shell) -> None:
    graph = shell.graph(stage("bench_echo"))
    assert json.loads(shell("run", graph, "--input", "-", stdin="[1]").stdout) == [1]
    done = shell("run", "-", "--input", "[2]", stdin=Path(graph).read_text())
    assert json.loads(done.stdout) == [2]


def test_json_has_the_job_and_its_stages(shell: Shell, client: Client) -> None:
    graph = shell.graph(seq(stage("bench_echo"), stage("format_json")))
    record = json.loads(shell("run", graph, "--input", "[1]", "--json").stdout)
    assert (record["state"], record["result"]) == ("done", "[1]")
    assert [row["stage"] for row in record["rows"]] == ["bench_echo", "format_json"]
    assert client.status(record["job"]) is JobState.DONE


def test_watch_shows_each_stage_on_stderr(shell: Shell) -> None:
    done = shell("run", shell.graph(stage("bench_echo")), "--input", "[1]", "--watch")
    assert done.returncode == 0
    assert done.stderr.startswith("done    bench_echo  root  on bench@")


def test_a_failed_job_is_code_1_and_names_stage_and_worker(shell: Shell) -> None:
    graph = shell.graph(seq(stage("bench_echo"), stage("bench_fail")))
    done = shell("run", graph, "--input", '{"message": "out of milk"}')
    assert (done.returncode, done.stdout) == (1, "")
    assert error(done).startswith("stage.failed: out of milk (at root.stages[1]) (on bench@")


def test_a_watched_job_that_fails_is_named(shell: Shell, client: Client) -> None:
    done = shell("run", shell.graph(stage("bench_fail")), "--watch")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"Details: gridq job {client.jobs(1)[0].job}"


def test_a_failed_job_as_json(shell: Shell) -> None:
    done = shell("run", shell.graph(stage("bench_fail")), "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["state"], record["error"]["code"]) == (1, "failed", "stage.failed")
    assert [row["state"] for row in record["rows"]] == ["failed"]


def test_an_unknown_stage_names_the_nearest(shell: Shell) -> None:
    done = shell("run", shell.graph(stage("bench_ecko")))
    assert done.returncode == 3
    assert ".json: root)" in error(done)
    assert "Fix: use 'bench_echo'" in error(done)


def test_an_unserved_stage_is_code_4_and_names_what_is_served(shell: Shell) -> None:
    done = shell("run", shell.graph(stage("bench_echo", slug="rare")))
    assert done.returncode == 4
    assert error(done).startswith("seat.none_live: No live seat serves bench:rare")
    assert "the live seats of bench serve bench:any" in error(done)
    assert error(done).endswith("or submit with --wait-for-seat")


def test_stages_come_from_a_folder(shell: Shell) -> None:
    folder = shell.folder / "stages"
    folder.mkdir()
    spec = {
        "name": "shout",
        "input": {"kind": "Any"},
        "output": {"kind": "Text"},
        "effects": ["Pure"],
        "implementation": "builtin:text_template",
        "config": {"template": "{{.}}!"},
    }
    (folder / "shout.json").write_text(json.dumps(spec))
    done = shell("run", shell.graph(stage("shout")), "--stages", str(folder), "--input", '"hey"')
    assert (done.returncode, done.stdout) == (0, "hey!\n")


def test_an_unreachable_server_is_one_line_and_code_2(shell: Shell) -> None:
    away = {"GRIDQ_BROKER_URL": "redis://:secret@127.0.0.1:1/0"}
    graph = shell.graph(stage("bench_echo"))
    for arguments in (["run", graph], ["workers"]):
        done = shell(*arguments, **away)
        assert done.returncode == 2
        assert error(done).startswith("broker.unreachable: Nothing answers at redis://127.0.0.1:1/0")
        assert "secret" not in done.stderr


def test_a_wrong_password_is_one_line_and_code_2(shell: Shell, server: EmbeddedServer) -> None:
    wrong = f"redis://:wrong@127.0.0.1:{server.port}/0"
    done = shell("run", shell.graph(stage("bench_echo")), GRIDQ_BROKER_URL=wrong)
    assert done.returncode == 2
    assert error(done).startswith("broker.refused: ")


def test_a_wrong_setting_is_named(shell: Shell) -> None:
    done = shell("workers", GRIDQ_LEASE_MS="soon")
    assert done.returncode == 2
    assert "GRIDQ_LEASE_MS" in error(done)


def running(client: Client, process: subprocess.Popen[str]) -> str:
    """Return the id of the grid's only job, once a slot of it is busy."""
    [lease] = wait_for(
        lambda: client.redis.zrange(client.keys("leases"), 0, -1),
        true=lambda leases: leases or process.poll() is not None,
    )
    return str(lease.decode().partition(":")[0])


def test_ctrl_c_cancels_the_job(shell: Shell, client: Client) -> None:
    process = shell.start("run", shell.graph(stage("bench_sleep", ms=60_000)))
    job = running(client, process)
    assert [seat["busy"] for seat in json.loads(shell("workers", "--json").stdout)] == [1, 0]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == f"The job {job} was cancelled\n"
    assert client.status(job) is JobState.CANCELLED


def test_on_a_terminal_the_progress_is_drawn(shell: Shell, client: Client) -> None:
    ours, theirs = pty.openpty()
    process = shell.start("run", shell.graph(stage("bench_sleep", ms=1500)), "-i", "{}", stderr=theirs)
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux's end of file of a terminal
            while data := os.read(ours, 4096):
                written.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    out = process.communicate(timeout=60)[0]
    reader.join(10)
    os.close(ours)
    screen = b"".join(written).decode()
    assert process.returncode == 0
    assert json.loads(out) == {"ms": 1500}
    assert "0/1 step" in screen
    assert "bench_sleep  on bench@" in screen
    assert "\x1b[2K1 step in " in screen.splitlines()[-1]


def test_in_the_background_of_a_terminal_nothing_is_drawn(shell: Shell, client: Client) -> None:
    """A real shell with job control runs `gridq run … &` whose progress would hit what the shell prints."""
    command = shlex.join([*GRIDQ, "run", shell.graph(stage("bench_sleep", ms=1500)), "-i", "{}"])
    child, ours = pty.fork()
    if not child:
        os.execve("/bin/sh", ["sh", "-mc", f"{command} & wait"], shell.env)
    written: list[bytes] = []
    with contextlib.suppress(OSError):  # Linux's end of file of a terminal
        while data := os.read(ours, 4096):
            written.append(data)
    os.close(ours)
    screen = b"".join(written).decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, screen
    assert "\x1b" not in screen
    assert "bench@" not in screen
    assert '"ms": 1500' in screen  # the answer


def test_workers_lists_the_live_seats(shell: Shell) -> None:
    done = shell("workers")
    assert done.returncode == 0
    header, _, *rows = done.stdout.splitlines()
    assert header.split() == ["seat", "kind", "slots", "queues", "state", "uptime"]
    seats = [row.split()[:3] for row in rows]
    assert [(kind, concurrency) for _, kind, concurrency in seats] == [("bench", "0/2"), ("local", "0/4")]
    assert max(map(len, done.stdout.splitlines())) <= 80
    listed = json.loads(shell("workers", "--json").stdout)
    assert [seat["queues"] for seat in listed] == [["bench:any"], ["gridq:local"]]


def test_probe_shows_seats_and_what_was_not_found(shell: Shell) -> None:
    done = shell("probe", GRIDQ_PROFILES=f"{BENCH},llm", OPENAI_API_KEY="")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["local", "bench"]
    assert "llm: No" in done.stdout
    report = json.loads(shell("probe", "--json").stdout)
    assert [seat["name"] for seat in report["seats"]] == ["local", "bench"]
    assert "config" not in report["seats"][1]
