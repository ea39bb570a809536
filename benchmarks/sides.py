"""Start both sides on one server: a router and a worker for the bench seat, and a bare Celery worker."""

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
READY_TIMEOUT_SECONDS = 30.0
RESULT_TTL_SECONDS = 30.0
"""Short, so that the keys of jobs expire during the run."""


def make_echo_node() -> Json:
    """Return a graph node for the cheapest stage."""
    return {"op": "Stage", "id": "bench_echo"}


def read_memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB (10⁶ bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"Process {pid} reports no resident memory")


def read_server_memory_mb(store: Redis) -> float:
    """Return the memory used by a server in MB."""
    memory: Any = store.info("memory")
    return int(memory["used_memory"]) / 1e6


@contextmanager
def use_environment(url: str, home: Path, result_ttl: float, *, profiles: str = BENCH) -> Iterator[Settings]:
    """Point this process's settings and Celery app to the benchmark's server and home folder within the
    block.

    Results live for `result_ttl` seconds.
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
    """The two sides, as a context manager.

    `jobs` has the ids of gridq's jobs, `routed` is the number of those that went through the router, and
    `idle_memory_mb` is the worker's memory before the first job.
    """

    def __init__(self) -> None:
        self.jobs: set[str] = set()
        self.routed = 0
        self.idle_memory_mb = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
            self.server = stack.enter_context(EmbeddedServer())
            home = folder / "home"
            home.mkdir()
            (home / "seats.toml").write_text(f"[bench]\nconcurrency = {CONCURRENCY}\n")
            self.config = stack.enter_context(use_environment(self.server.url, home, RESULT_TTL_SECONDS))
            self.store = connect(self.server.url, name="bench")
            stack.callback(self.store.close)
            self.home = stack.enter_context(GridProcesses(self.config, [SEAT], folder=folder / "logs"))
            self.client = BrokerClient(self.server.url, config=self.config)
            stack.callback(self.client.close)
            self.bare = stack.enter_context(
                _bare_worker(self.server.url.removesuffix("/0") + "/1", folder / "bare.log")
            )
            self.idle_memory_mb = read_memory_mb(self.worker_pid)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run_graph(self, graph: Json, value: Json) -> Any:
        """Submit one job through the router; return its AsyncResult."""
        from gridq.tasks import run_graph

        result = run_graph.delay(graph, value)
        self.jobs.add(result.id)
        self.routed += 1
        return result

    def submit(self, graph: Json, value: Json) -> str:
        """Submit one job with the client, which admits it; return its id."""
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
    """Run a bare Celery worker with its fastest options; wait until it answers."""
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
    child_environment = {**os.environ, bare_app.URL: url, "PYTHONWARNINGS": "ignore"}
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=child_environment
        )
    try:
        began = time.monotonic()
        bare_app.echo.delay("ready").get(timeout=READY_TIMEOUT_SECONDS)
        assert time.monotonic() - began < READY_TIMEOUT_SECONDS
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        bare_app.app.close()
