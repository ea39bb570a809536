"""The logs and events of a whole grid at DEBUG: they have what happened to which job, and never prompts or
keys.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gridq import errors
from gridq.app import app
from gridq.client import Client
from gridq.config.settings import Settings
from gridq.store.connection import connect
from gridq.tasks import run_graph
from tests.fakes.openai_server import OpenAIServer
from tests.flower_process import FlowerProcess
from tests.grid_environment import use_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

pytestmark = pytest.mark.slow

CANARY = "canary" + secrets.token_hex(4)
"""A text in every prompt, key, header, query and error, which no log line and no event may contain."""

STAGES = f'''
import time
from gridq import stage

@stage(effects="Process", input="Any", output="Any")
def boom(value):
    raise RuntimeError("{CANARY} " + str(value))

@stage(effects="Process", input="Any", output="Any")
def nap(value):
    time.sleep(60)
'''

SEATS = """
[[llm]]
name = "api"
url = "{url}"
key_env = "WIRE_KEY"
headers = {{ "x-team" = "{canary}" }}
allow_loopback = true
models = [{{ name = "echo" }}]

[[llm]]
name = "locked"
url = "{locked}"
key_env = "LOCKED_KEY"
allow_loopback = true
models = [{{ name = "locked" }}]
"""


@dataclass
class LoggingGrid:
    """A grid with narrated JSON logs at DEBUG. `published` has everything that its server published."""

    home: GridProcesses
    client: Client
    api: OpenAIServer
    folder: Path
    published: list[bytes] = field(default_factory=list)

    def text(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def lines(self, event: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return the log lines of an event with these fields."""
        parsed = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [
            line for line in parsed if line["event"] == event and wanted.items() <= line.items()
        ]  # fmt: skip

    def wait_for_line(self, event: str, **wanted: Any) -> dict[str, Any]:
        return wait_for(lambda: self.lines(event, **wanted), poll=0.05, explain=self.text)[0]


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggingGrid]:
    folder = tmp_path_factory.mktemp("talkative")
    (folder / "canary_stages.py").write_text(STAGES)
    (folder / "home").mkdir()
    key = f"sk-{CANARY}"
    with OpenAIServer(key) as api, OpenAIServer("another") as locked:
        seats = SEATS.format(url=api.url, locked=locked.url, canary=CANARY)
        (folder / "home" / "seats.toml").write_text(seats)
        config = Settings(
            broker_url=server.url, prefix=f"l{secrets.token_hex(3)}:", home=folder / "home",
            profiles=("llm",), log_level="DEBUG", retry_backoff=0.2,
        )  # fmt: skip
        env = {
            "GRIDQ_LOG": "json", "GRIDQ_LOG_LEVEL": "DEBUG", "GRIDQ_NARRATE": "1", "GRIDQ_DRAIN": "1",
            "GRIDQ_STAGES": "canary_stages", "PYTHONPATH": str(folder), "WIRE_KEY": key, "LOCKED_KEY": key,
            "GRIDQ_HTTP_ALLOW": api.url.split("/")[2],
        }  # fmt: skip
        with (
            use_grid(config) as client,
            GridProcesses(config, ["local", "api", "locked"], folder=folder / "logs", env=env) as home,
        ):
            up = LoggingGrid(home, client, api, folder / "logs")
            with Watched(up):
                yield up


class Watched:
    """Enables Celery's events within the block, and collects everything published except answers."""

    def __init__(self, up: LoggingGrid) -> None:
        self.up = up
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=act, daemon=True) for act in (self._monitor, self._listen)]

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()
        wait_for(lambda: any(b"worker-heartbeat" in data for data in self.up.published), explain=self.up.text)

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(10)

    def _monitor(self) -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": lambda event: None})
            while not self.stop.is_set():
                app.control.enable_events()  # again and again, as Flower does
                try:
                    receiver.capture(limit=20, timeout=0.5, wakeup=False)
                except TimeoutError:
                    continue

    def _listen(self) -> None:
        with connect(self.up.client.url) as client, client.pubsub() as heard:
            heard.psubscribe("*")
            while not self.stop.is_set():
                message = heard.get_message(timeout=0.2)
                if (
                    message
                    and message["type"] == "pmessage"
                    and b"celery-task-meta-" not in message["channel"]
                ):
                    self.up.published.append(message["data"])


def stage(name: str, **config: Any) -> dict[str, Any]:
    return {"root": {"op": "Stage", "id": name, "config": config}, "name": "canaries"}


def test_events_have_their_fields_and_sentences(grid: LoggingGrid) -> None:
    graph = stage("llm_complete", model="echo", max_tokens=9, system=CANARY)
    job = run_graph.delay(graph, {"prompt": f"say {CANARY} twice"})
    assert CANARY in job.get(timeout=30)
    admitted = grid.wait_for_line("job admitted", job=job.id)
    assert (admitted["name"], admitted["agent"], admitted["stages"]) == ("canaries", "default", 1)
    assert admitted["sentence"] == f"Job {job.id[:8]} (canaries) was admitted for agent default: 1 stage."
    worker = grid.client.rows(job.id)[0].worker
    about = {"job": job.id, "attempt": 1, "worker": worker, "name": "canaries"}
    taken = grid.wait_for_line("stage claimed", **about)
    assert taken["sentence"].startswith(f"{worker} took canaries/llm_complete (attempt 1) after ")
    done = grid.wait_for_line("stage done", **about, stage=taken["stage"])
    assert done["tokens_out"] > 0
    assert done["sentence"].endswith(f" ms, {done['tokens_out']} tokens.")
    grid.wait_for_line("job done", **about)


def test_failures_are_logged_with_their_codes(grid: LoggingGrid) -> None:
    job = run_graph.delay(stage("boom"), {"prompt": CANARY})
    with pytest.raises(errors.StageError, match=CANARY):
        job.get(timeout=30)
    failed = grid.wait_for_line("stage failed", job=job.id)
    assert failed["code"] == "stage.failed"
    grid.wait_for_line("job failed", job=job.id, code="stage.failed")
    wrong = run_graph.delay({"root": {"op": "Stage", "id": CANARY}}, {"prompt": CANARY})
    with pytest.raises(errors.UnknownStage):
        wrong.get(timeout=30)
    assert grid.wait_for_line("job refused", job=wrong.id)["code"] == "stage.not_found"


def test_a_refused_key_is_logged_without_the_key(grid: LoggingGrid) -> None:
    job = grid.client.submit(stage("llm_complete", model="locked"), {"prompt": CANARY})
    paused = grid.wait_for_line("seat cooldown", job=job)
    assert paused["code"] == "seat.degraded"
    assert grid.wait_for_line("stage retried", job=job)["code"] == "seat.degraded"
    grid.client.cancel(job)


def test_urls_are_not_logged(grid: LoggingGrid) -> None:
    url = f"{grid.api.url}/models?key={CANARY}"
    with pytest.raises(errors.GridError):  # the endpoint requires a key that this stage does not have
        grid.client.run(
            {"root": {"op": "Sequential", "stages": [stage("http_get")["root"], stage("http_body")["root"]]}},
            url, 30,
        )  # fmt: skip


def test_unknown_messages_are_not_logged(grid: LoggingGrid) -> None:
    app.send_task("no.such.task", args=[CANARY], kwargs={"prompt": CANARY}, queue="gridq:router")
    app.send_task("gridq.run_graph", args=[CANARY, {"prompt": CANARY}, CANARY], queue="gridq:router")
    wait_for(lambda: "unregistered task" in grid.text(), explain=grid.text)
    app.send_task("gridq.complete", kwargs={"prompt": CANARY}, queue="gridq:router")
    wait_for(lambda: "gridq.complete[" in grid.text() and "raised unexpected: ConfigError" in grid.text())


def test_a_dead_worker_is_logged(grid: LoggingGrid) -> None:
    job = grid.client.submit(stage("nap"), CANARY)
    grid.wait_for_line("stage claimed", job=job)
    grid.home.children["local"].kill()
    grid.wait_for_line("workers died")
    lost = grid.wait_for_line("stage lost", job=job)
    assert (lost["stage"], lost["attempt"], lost["after"]) == ("root", 1, "again")
    assert lost["worker"].startswith("local@")
    assert f"(attempt 1) was lost with {lost['worker']}" in lost["sentence"]
    grid.client.cancel(job)
    grid.home.children["local"].wait()
    grid.home.spawn("local")


def test_flower_writes_the_same_lines(grid: LoggingGrid) -> None:
    env = {"GRIDQ_LOG": "json", "GRIDQ_LOG_LEVEL": "DEBUG"}
    with FlowerProcess(env) as flower:
        assert flower.client.get("/tasks", params={"search": CANARY}).status_code == 200
        assert flower.anonymous.get("/tasks", auth=("gridq", CANARY)).status_code == 401
        wait_for(lambda: '"logger": "flower' in flower.read_log(), explain=flower.read_log)
        log = flower.read_log()
        assert CANARY not in log
        assert flower.password not in log
    lines = [line for line in log.splitlines() if line.startswith("{")]
    assert all({"at", "level", "event"} <= json.loads(line).keys() for line in lines)


def test_the_canary_is_nowhere(grid: LoggingGrid) -> None:
    """The last test: it reads all logs and events of the tests above."""
    text = grid.text()
    for event in ("job done", "job failed", "job refused", "seat cooldown", "workers died", "stage lost"):
        assert grid.lines(event), f"{event} was not logged: this test would show nothing"
    assert '"level": "debug"' in text
    assert CANARY not in text
    assert grid.client.config.broker_url.get_secret_value().split("@")[0].split(":")[-1] not in text
    assert any(b"task-succeeded" in data for data in grid.published)
    found = [data for data in grid.published if CANARY.encode() in data]
    assert found == [], found[0].decode()
