"""Start a grid for one benchmark: a server, a router and bench seats as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from benchmarks.sides import use_environment
from gridq.client import Client
from gridq.errors import BrokerUnreachable
from gridq.protocol.models import Json
from gridq.store.connection import connect, now_ms
from workers.supervisor import programs
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port
from workers.supervisor.grid_processes import GridProcesses

READY_TIMEOUT_SECONDS = 120.0


class BenchGrid:
    """One server, one router and bench seats, as a context manager.

    Each worker is a child of this process and is not restarted. With `supervised`, the workers belong to one
    `gridq worker`, which restarts them. With `gateway`, there is also a gateway, and `gateway_client` uses
    it. `result_ttl` is in seconds.
    """

    def __init__(
        self,
        seats: int,
        concurrency: int,
        *,
        supervised: bool = False,
        appendonly: bool = False,
        gateway: bool = False,
        result_ttl: float = 3600.0,
    ) -> None:
        self.names = [f"seat{number}" for number in range(seats)]
        self.concurrency = concurrency
        self.supervised = supervised
        self.appendonly = appendonly
        self.with_gateway = gateway
        self.result_ttl = result_ttl

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
            data = self.folder / "data" if self.appendonly else None
            self.server = stack.enter_context(EmbeddedServer(data, appendonly=self.appendonly))
            home = self.folder / "home"
            home.mkdir(mode=0o700)
            seats = [f'[[bench]]\nname = "{name}"\nconcurrency = {self.concurrency}\n' for name in self.names]
            (home / "seats.toml").write_text("".join(seats))
            self.config = stack.enter_context(use_environment(self.server.url, home, self.result_ttl))
            self.store = connect(self.server.url, name="bench")
            stack.callback(self.store.close)
            served = [] if self.supervised else self.names
            self.home = GridProcesses(self.config, served, folder=self.folder / "logs")
            stack.callback(self.home.stop, 5.0)
            self.home.start(READY_TIMEOUT_SECONDS)
            if self.supervised:
                self._supervise(stack)
            self.client = Client(self.server.url, config=self.config)
            stack.callback(self.client.close)
            if self.with_gateway:
                self._start_gateway(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _supervise(self, stack: ExitStack) -> None:
        with (self.folder / "worker.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "gridq.cli", "worker"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=programs.make_environment(self.config),
            )
        stack.callback(programs.stop_processes, [(child, 15.0)])
        self.wait_for_seats(len(self.names))

    def _start_gateway(self, stack: ExitStack) -> None:
        port = find_free_port()
        program = programs.make_gateway(
            port, self.folder / "logs", programs.make_environment(self.config), 5.0
        )
        self.gateway = program.start()
        stack.callback(programs.stop_processes, [(self.gateway, 5.0)])
        self.gateway_client = Client(f"http://127.0.0.1:{port}", config=self.config)
        stack.callback(self.gateway_client.close)
        until = time.monotonic() + READY_TIMEOUT_SECONDS
        while True:
            try:
                self.gateway_client.workers()
                return
            except BrokerUnreachable:
                if self.gateway.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"The gateway does not answer: {program.last_log_line()}") from None
                time.sleep(0.1)

    def wait_for_seats(self, count: int) -> None:
        """Wait until this many seats are live. Raises RuntimeError after READY_TIMEOUT_SECONDS."""
        until = time.monotonic() + READY_TIMEOUT_SECONDS
        while self.count_live_seats() < count:
            if time.monotonic() > until:
                raise RuntimeError(f"{count} seats did not become live; see the logs in {self.folder}")
            time.sleep(0.05)

    def count_live_seats(self) -> int:
        """Return the number of live bench seats."""
        return self.store.scard(self.make_key("serving", "bench:any"))

    def make_key(self, *parts: str) -> str:
        return self.config.prefix + "." + ":".join(parts)

    def submit_sleep(self, ms: int, **options: Json) -> str:
        """Submit a job whose stage takes `ms`; return its id."""
        graph = {"root": {"op": "Stage", "id": "bench_sleep"}}
        return self.client.submit(graph, {"ms": ms}, **options)

    def list_running_jobs(self) -> dict[str, list[str]]:
        """Return the running jobs of each seat, by the seat's name."""
        found: dict[str, list[str]] = {name: [] for name in self.names}
        leases: Any = self.store.hgetall(self.make_key("lease_info"))
        for lease, who in leases.items():
            found[who.decode().split(" ")[0].partition(".")[2]].append(lease.decode().split(":")[0])
        return found

    def kill_worker(self, name: str) -> int:
        """Kill the worker of a seat with SIGKILL. Return the server's time in ms just before."""
        pid = self._pid(name)
        at = now_ms(self.store)
        os.kill(pid, signal.SIGKILL)
        return at

    @contextmanager
    def suspend_worker(self, name: str) -> Iterator[None]:
        """Suspend the worker of a seat within the block. It may be killed meanwhile."""
        pid = self._pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _pid(self, name: str) -> int:
        if not self.supervised:
            return self.home.children[name].pid
        about = json.loads((self.config.home / "worker.json").read_text())
        return int(next(part["pid"] for part in about["parts"] if part["name"] == name))

    def restart_worker(self, name: str) -> None:
        """Restart the killed worker of a seat that has no supervisor."""
        self.home.children[name].wait()
        self.home.spawn(name)

    def read_claims(self, job: str) -> tuple[int, int]:
        """Return how often a job's only stage was claimed, and the time of the last claim (server's clock,
        ms).
        """
        attempts, at = self.store.hmget(self.make_key("job", job), "attempts:0", "started_at:0")
        return int(attempts or 0), int(at or 0)
