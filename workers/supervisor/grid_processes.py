"""Routers and workers as children of this process, for the time of a `with` block: the demo, tests,
benchmarks.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gridq.config.settings import Settings
from gridq.errors import ConfigError, StartTimeout
from gridq.store.connection import connect
from gridq.store.keys import Keys
from workers.supervisor import programs
from workers.supervisor.programs import Program

STOP_MARGIN_SECONDS = 10.0
"""Time after the drain at which a child that has not ended is killed."""


class GridProcesses:
    """Routers, and a worker for each of `seats`, as processes of this Python.

    `env` is added to the children's environment. Their output goes to `<folder>/<name>.log`. A child ends
    when this process does, however that ends. One that ends by itself is not restarted.
    """

    def __init__(
        self,
        config: Settings,
        seats: Sequence[str],
        *,
        routers: int = 1,
        folder: Path,
        env: dict[str, str] | None = None,
    ) -> None:
        self.config = config
        self.seats = list(seats)
        self.routers = routers
        self.folder = folder
        self.env = env or {}
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, timeout: float = 30.0) -> Self:
        """Start them and return once all are live.

        ConfigError: one ended; the error holds its last log line. StartTimeout: they took longer than
        `timeout`.
        """
        before = self._live_seats()
        for number in range(self.routers):
            self.spawn(f"router{number}")
        for seat in self.seats:
            self.spawn(seat)
        until = time.monotonic() + timeout
        while self._live_seats() - before < self.routers + len(self.seats):
            self._check(time.monotonic() > until)
            time.sleep(0.05)
        return self

    def spawn(self, name: str) -> subprocess.Popen[bytes]:
        """Start or restart the router or worker called `name`."""
        self.children[name] = self._program(name).start()
        return self.children[name]

    def stop(self, within: float | None = None) -> None:
        """Stop every child: workers first, then routers, which handle what the workers hand back.

        One that has not ended after `within` seconds (default: the drain and STOP_MARGIN_SECONDS) is killed.
        """
        if within is None:
            within = self.config.drain + STOP_MARGIN_SECONDS
        for order in programs.WORKERS, programs.ROUTERS:
            group = [
                child for name, child in self.children.items() if self._program(name).stop_order == order
            ]
            programs.stop_processes([(child, within) for child in group])
        self.children.clear()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _program(self, name: str) -> Program:
        """Return the program called `name`: a router, or a seat, whose name may begin with `router` too."""
        env = programs.make_environment(self.config, self.env)
        if name in [f"router{number}" for number in range(self.routers)]:
            return programs.make_router(self.config, name, self.folder, env)
        return programs.make_seat_worker(self.config, name, self.folder, env, STOP_MARGIN_SECONDS)

    def _live_seats(self) -> int:
        client = connect(self.config.broker_url.get_secret_value(), name="gridq-home")
        try:
            return client.zcard(Keys(self.config.prefix)("seats"))
        finally:
            client.close()

    def _check(self, late: bool) -> None:
        for name, child in self.children.items():
            if child.poll() is not None:
                program = self._program(name)
                raise ConfigError(
                    f"{name} ended while it started",
                    {"reason": program.last_log_line(), "path": str(program.log)},
                )
        if late:
            raise StartTimeout(
                "The grid was not ready in time",
                {"path": str(self.folder), "fix": "read the logs in that folder"},
            )
