"""The programs of a grid as child processes: their command lines, environment, logs and shutdown."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gridq.config.settings import Settings
from gridq.process import parent_watch
from gridq.protocol import queue_names

ROUTER_CONCURRENCY = 4

HURRY_SECONDS = 3.0
"""Time that a child gets to stop in a hurry: it hands back what it runs."""

SIGNAL_INTERVAL_SECONDS = 0.5
"""Time between two signals to a child: two at once would count as one."""
_PART_NAMES = re.compile(r"server|gateway|flower|mirror|router\d*")

GATEWAY = "gateway"
MIRROR = "mirror"

MAX_LOG_BYTES = 8 * 1024 * 1024
"""Size from which a log is moved to `<name>.log.1` when its program starts."""

WORKERS, ROUTERS, FLOWER, SERVER = range(4)
"""The order in which the parts of a grid stop: routers must still handle what workers hand back."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its name, command line (used without a shell), environment and log file.

    `stop_order`: WORKERS stop first, SERVER last. `stop_timeout`: seconds after SIGTERM until it is killed.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    log: Path
    stop_order: int = WORKERS
    stop_timeout: float = 10.0
    _log_start: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in its own session, so that Ctrl-C reaches only the parent."""
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                os.replace(self.log, self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            self._log_start[0] = log.tell()
            return subprocess.Popen(  # noqa: S603 our own programs and arguments
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.env),
                start_new_session=True,
            )

    def last_log_line(self) -> str:
        """Return the last line that it has logged since it was started."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start[0], self.log.stat().st_size - 4096))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].strip() if lines else "it logged nothing"


def make_router(config: Settings, name: str, logs: Path, env: Mapping[str, str]) -> Program:
    """Return a router whose Celery name is `name` at this host."""
    options = ("gridq.app", "-Q", queue_names.ROUTER, "-n", f"{name}@%h", "-c", str(ROUTER_CONCURRENCY))
    return Program(name, _worker_command(config, *options), env, logs / f"{name}.log", ROUTERS)


def make_seat_worker(
    config: Settings, name: str, logs: Path, env: Mapping[str, str], stop_timeout: float
) -> Program:
    """Return the worker of this machine's seat `name`. It has the seat's name, unless another part has it."""
    command = _worker_command(config, "workers", "--seat", name)
    label = f"seat-{name}" if _PART_NAMES.fullmatch(name) else name
    return Program(label, command, env, logs / f"{label}.log", WORKERS, stop_timeout)


def make_flower(port: int, logs: Path, env: Mapping[str, str]) -> Program:
    """Return Flower on `port` of the loopback interface."""
    command = (sys.executable, "-m", "gridq.cli", "flower", "--port", str(port))
    return Program("flower", command, env, logs / "flower.log", FLOWER)


def make_gateway(port: int, logs: Path, env: Mapping[str, str], stop_timeout: float) -> Program:
    """Return a gateway on `port`. It stops together with the workers: while they finish their stages, it
    passes the answers on and accepts no new requests.
    """
    command = (sys.executable, "-m", "gridq.cli", "gateway", "--port", str(port))
    return Program(GATEWAY, command, env, logs / f"{GATEWAY}.log", WORKERS, stop_timeout)


def make_environment(
    config: Settings, more: Mapping[str, str] | None = None, *, orphaned: float = parent_watch.GRACE_SECONDS
) -> dict[str, str]:
    """Return a child's environment: that of this process, the grid of `config`, and `more`.

    If this process is killed, the child ends itself within `orphaned` seconds.
    """
    return {
        **os.environ,
        "GRIDQ_BROKER_URL": config.broker_url.get_secret_value(),
        "GRIDQ_PREFIX": config.prefix,
        "GRIDQ_HOME": str(config.home),
        "GRIDQ_PROFILES": ",".join(config.profiles),
        "PYTHONWARNINGS": "ignore",
        parent_watch.PARENT_VARIABLE: str(os.getpid()),
        parent_watch.GRACE_VARIABLE: f"{orphaned:g}",
        **(more or {}),
    }


def sleep(seconds: float) -> bool:
    """Wait, and report no hurry: the default `pause` of `stop_processes`."""
    time.sleep(seconds)
    return False


def stop_processes(
    children: Sequence[tuple[subprocess.Popen[bytes], float]],
    pause: Callable[[float], bool] = sleep,
) -> list[subprocess.Popen[bytes]]:
    """Stop each child by SIGTERM within its seconds. Return those that had to be killed.

    `pause(seconds)` waits. Once it returns True, the stop is urgent: those left get another SIGTERM, and
    HURRY_SECONDS.
    """
    began = time.monotonic()
    left = []
    for child, within in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            left.append((child, began + within))
    killed = []
    hurry, remind_at = False, began
    while left:
        for child, until in left:
            if time.monotonic() > until:
                kill_process(child)
                killed.append(child)
        left = [(child, until) for child, until in left if child.poll() is None]
        if hurry and time.monotonic() > remind_at:
            remind_at = time.monotonic() + SIGNAL_INTERVAL_SECONDS
            for child, _ in left:
                child.send_signal(
                    signal.SIGTERM
                )  # a worker then hands back at once, which a killed one cannot
        if left and pause(0.02) and not hurry:
            hurry = True
            left = [(child, min(until, time.monotonic() + HURRY_SECONDS)) for child, until in left]
    return killed


def kill_process(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that leads its own session, with the processes that it started there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def _worker_command(config: Settings, *what: str) -> tuple[str, ...]:
    quiet = ("--without-gossip", "--without-mingle", "-l", config.log_level)
    return (sys.executable, "-m", "workers.process.node", *what, *quiet)
