"""The HOME deployment: server, routers and one worker a seat, as children of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gridq import parent, queues
from gridq.errors import ConfigError, StartTimeout
from gridq.settings import Settings
from gridq.store.connection import connect
from gridq.store.keys import Keys

STOP = 10.0
"""Seconds beyond the drain that a child may take to end before it is killed."""

ROUTER_LANES = 4


class Home:
    """Routers and workers on this machine, started as `celery` processes of this Python.

    `seats` are the names of this machine's seats to serve; `env` is added to the children's environment;
    their output goes to `<folder>/<name>.log`. A child ends when this process does, however that ends.
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
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        if self._routes(name):
            what = [
                "-A",
                "gridq.app",
                "worker",
                "-Q",
                queues.ROUTER,
                "-n",
                f"{name}@%h",
                "-c",
                str(ROUTER_LANES),
            ]
        else:
            what = ["-A", "workers", "worker", "--seat", name]
        command = [
            sys.executable,
            "-m",
            "celery",
            *what,
            "--without-gossip",
            "--without-mingle",
            "-l",
            "WARNING",
        ]
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 our own program and arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        self.children[name] = child
        return child

    def stop(self, within: float | None = None) -> None:
        """End every child: workers first, then routers, so that what they hand back is still looked after.

        One that has not ended after `within` seconds (default: the drain and STOP) is killed.
        """
        if within is None:
            within = self.config.drain + STOP
        workers = [child for name, child in self.children.items() if not self._routes(name)]
        routers = [child for name, child in self.children.items() if self._routes(name)]
        for group in (workers, routers):
            for child in group:
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)
            until = time.monotonic() + within
            for child in group:
                try:
                    child.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        self.children.clear()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _routes(self, name: str) -> bool:
        """Whether `name` is one of the routers: a seat may well be called `router` too."""
        return name in [f"router{number}" for number in range(self.routers)]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "GRIDQ_BROKER_URL": self.config.broker_url.get_secret_value(),
            "GRIDQ_PREFIX": self.config.prefix,
            "GRIDQ_HOME": str(self.config.home),
            "GRIDQ_PROFILES": ",".join(self.config.profiles),
            "PYTHONWARNINGS": "ignore",
            parent.VARIABLE: str(os.getpid()),
            **self.env,
        }

    def _live_seats(self) -> int:
        client = connect(self.config.broker_url.get_secret_value(), name="gridq-home")
        try:
            return client.zcard(Keys(self.config.prefix)("seats"))
        finally:
            client.close()

    def _check(self, late: bool) -> None:
        for name, child in self.children.items():
            if child.poll() is not None or late:
                text = (self.folder / f"{name}.log").read_text("utf-8", "replace").strip()
                last = text.splitlines()[-1] if text else "it said nothing"
                if child.poll() is not None:
                    raise ConfigError(
                        f"{name} ended at its start",
                        {"reason": last, "path": str(self.folder / f"{name}.log")},
                    )
        if late:
            raise StartTimeout(
                "The grid was not ready in time", {"path": str(self.folder), "fix": "read the logs there"}
            )
