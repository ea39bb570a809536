"""The programs of a grid as children of this process: their command lines, environment, logs and end."""

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

HURRIED = 3.0
"""Seconds that a child has to end where somebody is in a hurry: it hands back what it runs."""

REMINDED = 0.5
"""Seconds between two signals to it: two at once would be seen as one."""
_TAKEN = re.compile(r"server|gateway|flower|router\d*")

GATEWAY = "gateway"

LOG_SIZE = 8 * 1024 * 1024
"""Bytes beyond which a log is put aside when its program starts; one such is kept."""

WORKERS, ROUTERS, FLOWER, SERVER = range(4)
"""The order in which the parts of a grid end: what workers hand back is still looked after by a router."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its name among its like, its arguments (no shell sees them), environment and log file.

    `place` says when it ends, `stop_in` how many seconds after SIGTERM it is killed.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    log: Path
    place: int = WORKERS
    stop_in: float = 10.0
    _before: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own: Ctrl-C is for the parent alone."""
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_SIZE:
                os.replace(self.log, self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            self._before[0] = log.tell()
            return subprocess.Popen(  # noqa: S603 our own programs and arguments
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.env),
                start_new_session=True,
            )

    def last_words(self) -> str:
        """The last line that it has written to its log since it was started."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._before[0], self.log.stat().st_size - 4096))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].strip() if lines else "it said nothing"


def router(config: Settings, name: str, logs: Path, env: Mapping[str, str]) -> Program:
    """A router whose Celery name is `name` at this host."""
    what = ("gridq.app", "-Q", queue_names.ROUTER, "-n", f"{name}@%h", "-c", str(ROUTER_CONCURRENCY))
    return Program(name, _node(config, *what), env, logs / f"{name}.log", ROUTERS)


def seat(config: Settings, name: str, logs: Path, env: Mapping[str, str], stop_in: float) -> Program:
    """The worker of this machine's seat `name`. It is called like its seat, unless another part is."""
    command = _node(config, "workers", "--seat", name)
    label = f"seat-{name}" if _TAKEN.fullmatch(name) else name
    return Program(label, command, env, logs / f"{label}.log", WORKERS, stop_in)


def flower(port: int, logs: Path, env: Mapping[str, str]) -> Program:
    """Flower on `port` of the loopback interface."""
    command = (sys.executable, "-m", "gridq.cli", "flower", "--port", str(port))
    return Program("flower", command, env, logs / "flower.log", FLOWER)


def gateway(port: int, logs: Path, env: Mapping[str, str], stop_in: float) -> Program:
    """A gateway on `port`. It ends beside the workers: while they finish what they run, it hands the answers
    on, and lets nobody new in.
    """
    command = (sys.executable, "-m", "gridq.cli", "gateway", "--port", str(port))
    return Program(GATEWAY, command, env, logs / f"{GATEWAY}.log", WORKERS, stop_in)


def environment(
    config: Settings, more: Mapping[str, str] | None = None, *, orphaned: float = parent_watch.GRACE_SECONDS
) -> dict[str, str]:
    """A child's environment: this process's own, the grid that `config` names, and `more`.

    Where this process is killed, the child ends itself, within `orphaned` seconds.
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


def patiently(seconds: float) -> bool:
    """Wait, and be in no hurry."""
    time.sleep(seconds)
    return False


def end(
    children: Sequence[tuple[subprocess.Popen[bytes], float]],
    pause: Callable[[float], bool] = patiently,
) -> list[subprocess.Popen[bytes]]:
    """End every child by SIGTERM, each within its seconds; those that had to be killed.

    `pause(seconds)` waits; once it gives True, somebody is in a hurry: those left get a second SIGTERM,
    and HURRIED seconds.
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
                kill(child)
                killed.append(child)
        left = [(child, until) for child, until in left if child.poll() is None]
        if hurry and time.monotonic() > remind_at:
            remind_at = time.monotonic() + REMINDED
            for child, _ in left:
                child.send_signal(signal.SIGTERM)  # a worker hands back at once; one that is killed does not
        if left and pause(0.02) and not hurry:
            hurry = True
            left = [(child, min(until, time.monotonic() + HURRIED)) for child, until in left]
    return killed


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that leads its own session, with what it has started there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def _node(config: Settings, *what: str) -> tuple[str, ...]:
    quiet = ("--without-gossip", "--without-mingle", "-l", config.log_level)
    return (sys.executable, "-m", "workers.process.node", *what, *quiet)
