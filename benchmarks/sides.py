"""Both sides, live at one time: one server, a router and a worker of the bench seat, a bare Celery worker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from redis import Redis

from benchmarks import bare_app
from gridq.app import configure
from gridq.client import BrokerClient
from gridq.config.settings import Settings, settings
from gridq.protocol.models import Json
from gridq.store.connection import connect
from gridq.submission import inbox
from tests.fakes.bench_profile import BENCH
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

CONCURRENCY = 8
SEAT = "bench"
READY = 30.0
RESULT_TTL = 30.0
"""Seconds: short, so that the run sees its jobs' keys go."""


def echo_stage() -> Json:
    """A graph's node for the cheapest stage there is."""
    return {"op": "Stage", "id": "bench_echo"}


def memory_of(pid: int) -> float:
    """The resident memory of a process in MB (10⁶ bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"the process {pid} has no memory")


def memory_of_server(store: Redis) -> float:
    """What a server holds, in MB."""
    memory: Any = store.info("memory")
    return int(memory["used_memory"]) / 1e6


@contextmanager
def environment(url: str, home: Path, result_ttl: float, *, profiles: str = BENCH) -> Iterator[Settings]:
    """gridq's settings and app in this process point at the benchmark's own server and home folder; its jobs'
    results live for `result_ttl` seconds.
    """
    values = {
        "GRIDQ_BROKER_URL": url,
        "GRIDQ_PREFIX": "gq:",
        "GRIDQ_HOME": str(home),
        "GRIDQ_PROFILES": profiles,
        "GRIDQ_RESULT_TTL": f"{result_ttl:g}",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    settings.cache_clear()
    inbox.get_default_inbox.cache_clear()
    configure(settings())
    try:
        yield settings()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        settings.cache_clear()
        inbox.get_default_inbox.cache_clear()
        configure(settings())


class Sides:
    """The two sides as a context.

    `jobs` are the ids of gridq's jobs, `routed` counts those that went through the router, `idle_mb` is the
    worker's memory before the first of them.
    """

    def __init__(self) -> None:
        self.jobs: set[str] = set()
        self.routed = 0
        self.idle_mb = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
            self.server = stack.enter_context(EmbeddedServer())
            home = folder / "home"
            home.mkdir()
            (home / "seats.toml").write_text(f"[bench]\nconcurrency = {CONCURRENCY}\n")
            self.config = stack.enter_context(environment(self.server.url, home, RESULT_TTL))
            self.store = connect(self.server.url, name="bench")
            stack.callback(self.store.close)
            self.home = stack.enter_context(GridProcesses(self.config, [SEAT], folder=folder / "logs"))
            self.client = BrokerClient(self.server.url, config=self.config)
            stack.callback(self.client.close)
            self.bare = stack.enter_context(
                _bare_worker(self.server.url.removesuffix("/0") + "/1", folder / "bare.log")
            )
            self.idle_mb = memory_of(self.worker_pid)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run_graph(self, graph: Json, value: Json) -> Any:
        """The AsyncResult of one job that goes through the router."""
        from gridq.tasks import run_graph

        result = run_graph.delay(graph, value)
        self.jobs.add(result.id)
        self.routed += 1
        return result

    def submit(self, graph: Json, value: Json) -> str:
        """The id of one job that the client admits itself."""
        job = self.client.submit(graph, value)
        self.jobs.add(job)
        return job

    @property
    def server_version(self) -> str:
        """The server's name and version."""
        about: Any = self.store.info("server")
        return f"{about.get('server_name', 'redis')} {about.get('valkey_version', about['redis_version'])}"

    @property
    def worker_pid(self) -> int:
        return self.home.children[SEAT].pid

    @property
    def router_pid(self) -> int:
        return self.home.children["router0"].pid


@contextmanager
def _bare_worker(url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A bare Celery worker that answers, with the best options it has."""
    bare_app.app.conf.update(broker_url=url, result_backend=url)
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "benchmarks.bare_app",
        "worker",
        "-P",
        "threads",
        "-c",
        str(CONCURRENCY),
    ]
    command += [
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "-l",
        "WARNING",
        "-n",
        "bare@%h",
    ]
    environment = {**os.environ, bare_app.URL: url, "PYTHONWARNINGS": "ignore"}
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment)
    try:
        began = time.monotonic()
        bare_app.echo.delay("ready").get(timeout=READY)
        assert time.monotonic() - began < READY
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        bare_app.app.close()
