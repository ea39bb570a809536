"""The HOME deployment for one `with` block: routers and one worker a seat, as children of this process."""

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

STOP = 10.0
"""Seconds beyond the drain that a child may take to end before it is killed."""


class GridProcesses:
    """Routers and workers on this machine, as processes of this Python.

    `seats` are the names of this machine's seats to serve; `env` is added to the children's environment;
    their output goes to `<folder>/<name>.log`. A child ends when this process does, however that ends. One
    that ends by itself is not started again: `workers.supervisor.children` does that.
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
        """Start them and return once every seat is live.

        ConfigError: one ended, with its last words. StartTimeout: not all were live within `timeout` seconds.
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
        """Start (again) the router or worker called `name`."""
        self.children[name] = self._program(name).start()
        return self.children[name]

    def stop(self, within: float | None = None) -> None:
        """End every child: workers first, then routers, so that what they hand back is still looked after.

        One that has not ended after `within` seconds (default: the drain and STOP) is killed.
        """
        if within is None:
            within = self.config.drain + STOP
        for place in programs.WORKERS, programs.ROUTERS:
            group = [child for name, child in self.children.items() if self._program(name).place == place]
            programs.end([(child, within) for child in group])
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
        """The program called `name`: a router, or a seat, which may well be called `router` too."""
        env = programs.environment(self.config, self.env)
        if name in [f"router{number}" for number in range(self.routers)]:
            return programs.router(self.config, name, self.folder, env)
        return programs.seat(self.config, name, self.folder, env, STOP)

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
                    f"{name} ended at its start",
                    {"reason": program.last_words(), "path": str(program.log)},
                )
        if late:
            raise StartTimeout(
                "The grid was not ready in time", {"path": str(self.folder), "fix": "read the logs there"}
            )
