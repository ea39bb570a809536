"""The grid under attack: a server, routers, gateways and several machines as processes of this one, each
behind a proxy of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import redis
from pydantic import SecretStr

from gridq.errors import ConfigError, StartTimeout
from gridq.home import write_private
from gridq.settings import Settings
from gridq.store.connection import connect
from gridq.store.keys import Keys
from workers import programs
from workers.chaos import clock, witness
from workers.chaos.proxy import HOST, Proxy
from workers.chaos.standstill import Standstill
from workers.embedded import EmbeddedServer, free_port, is_free
from workers.programs import Program

PROFILES = ("chaos",)
STAGES = ("workers.chaos.stages",)
SEATS = ("bench", "local")
GATEWAYS = 2
LANES = 4
BUDGET = 1_000_000
"""Dollars a month of each bench seat: never used up, but counted."""
START = 120.0
"""Seconds within which the grid must be live."""
DRAIN = 2.0
QUARANTINE = 4.0
"""Seconds after which a stage in quarantine has failed: no operator looks."""
END = 60.0
"""Seconds that a part may take to end by SIGTERM while faults go on."""

QUOTAS = """\
[agents."*"]
monthly_dollars = 1000000

[agents.poor]
monthly_dollars = {dollars}
"""


@dataclass
class Part:
    """One program: a router, a gateway, or a worker of one of a machine's seats."""

    name: str
    sort: str
    machine: str
    program: Program
    proxy: Proxy
    child: subprocess.Popen[bytes] | None = None
    gone: bool = False
    """Killed for good."""
    ending: float | None = None
    """When it was told to end, monotonic."""
    due: float | None = None
    """When it is started again, monotonic."""

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None


class ChaosGrid:
    """`machines` machines with a bench seat and a local seat each, `routers` routers and two gateways, all
    under `folder`.

    `tell(text)` is called for what happens by itself: a part that ends without being told to.
    """

    def __init__(
        self,
        folder: Path,
        *,
        machines: int = 3,
        routers: int = 2,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = folder
        self.tell = tell
        self.prefix = "chaos:"
        self.keys = Keys(self.prefix)
        self.server = EmbeddedServer(folder / "server", appendonly=True, fsync="always")
        self.witness = folder / "witness"
        self.quotas = folder / "quotas.toml"
        self.parts: dict[str, Part] = {}
        self.deaths: list[tuple[int, int]] = []
        """Of each program that was killed: when (monotonic ms), its process."""
        self.ended_alone: list[str] = []
        self.slow_ends: list[str] = []
        self._machines = [f"m{number + 1}" for number in range(machines)]
        self._routers = [f"r{number + 1}" for number in range(routers)]
        self._ports = {f"g{number + 1}": free_port() for number in range(GATEWAYS)}
        self._proxies: list[Proxy] = []
        self._groups: list[int] = []
        self.standstill = Standstill()

    # -- life

    def start(self) -> Self:
        """Start everything and return once every seat is live. ConfigError, StartTimeout."""
        self.server.start()
        self.allow_poor(True)
        hook = clock.install(self.folder / "hook")
        for machine in self._machines:
            for seat in SEATS:
                self._add(f"{machine}.{seat}", seat, machine, hook)
        for machine in self._routers:
            self._add(f"{machine}.router", "router", machine, hook)
        for machine in self._ports:
            self._add(f"{machine}.gateway", "gateway", machine, hook)
        self.client_proxy = self._proxy()
        for part in self.parts.values():
            self.spawn(part)
        until = time.monotonic() + START
        with self.direct() as client:
            while client.zcard(self.keys("seats")) < len(self.parts) - GATEWAYS or any(
                map(is_free, self._ports.values())
            ):
                for part in self.parts.values():
                    if not part.running:
                        raise ConfigError(
                            f"{part.name} ended at its start", {"reason": part.program.last_words()}
                        )
                if time.monotonic() > until:
                    raise StartTimeout("The chaos grid was not live in time", {"path": str(self.folder)})
                time.sleep(0.1)
        return self

    def stop(self) -> list[str]:
        """End every program, then the server; in words, which had to be killed and what is left."""
        self.resume_all()
        killed = []
        for sorts in ((*SEATS, "gateway"), ("router",)):
            group = [part for part in self.parts.values() if part.sort in sorts and part.child is not None]
            late = programs.end([(part.child, DRAIN + 20.0) for part in group if part.child is not None])
            killed += [part.name for part in group if part.child in late]
        for proxy in self._proxies:
            proxy.close()
        self.server.stop()
        self.standstill.close()
        return [f"{name} had to be killed" for name in killed] + [
            f"processes of group {pid} are left" for pid in self._groups if _exists(pid)
        ]

    def direct(self) -> redis.Redis:
        """A client of the server itself, past every proxy."""
        return connect(self.server.url, name="chaos-judge", timeout=2, retry=False)

    def config(self, proxy: Proxy, home: Path) -> Settings:
        """The settings of a program that reaches the server through `proxy`."""
        url = f"redis://:{self.server.password}@{HOST}:{proxy.port}/0"
        return Settings(
            broker_url=SecretStr(url),
            prefix=self.prefix,
            home=home,
            profiles=PROFILES,
            stages=STAGES,
            quarantine=QUARANTINE,
        )

    @property
    def urls(self) -> str:
        """Where the gateways are, as a client takes them."""
        return ",".join(f"http://{HOST}:{port}" for port in self._ports.values())

    # -- what can be done to it

    def spawn(self, part: Part) -> None:
        """Start a part (again)."""
        part.child = part.program.start()
        self._groups.append(part.child.pid)
        part.due = part.ending = None

    def kill(self, part: Part) -> None:
        """Kill a part as a power cut would."""
        if part.child is not None and part.running:
            self.deaths.append((time.monotonic_ns() // 1_000_000, part.child.pid))
            programs.kill(part.child)
        part.ending = None

    def stand_still(self, part: Part) -> None:
        """Stop a part that runs by SIGSTOP, until `go_on`, or until this process ends."""
        if part.child is not None and part.running:
            self.standstill.stop(part.child.pid)

    def go_on(self, part: Part) -> None:
        """Let a part go on that stands still."""
        if part.child is not None and part.running:
            self.standstill.go_on(part.child.pid)

    def drain(self, part: Part) -> None:
        """Tell a part to end; it is started again once it has."""
        if part.child is not None and part.running and part.ending is None:
            part.child.send_signal(signal.SIGTERM)
            part.ending = time.monotonic()

    def stop_server(self, *, kill: bool) -> None:
        """End the server, by SIGTERM or by SIGKILL; `server.start` brings it back."""
        if self.server.pid:
            self.standstill.go_on(self.server.pid)
        if kill:
            self.server.kill()
        else:
            self.server.stop()

    def allow_poor(self, rich: bool) -> None:
        """Let the agent `poor` have all the money it wants, or none."""
        write_private(self.quotas, QUOTAS.format(dollars=1_000_000 if rich else 0.000001))

    def tick(self) -> None:
        """See to what has ended: start again what is due, and tell of what ended by itself."""
        now = time.monotonic()
        for part in self.parts.values():
            if part.gone or part.child is None:
                continue
            if part.running:
                if part.ending is not None and now > part.ending + END:
                    self.slow_ends.append(f"{part.name} had not ended {END:g} s after SIGTERM")
                    self.kill(part)
                    part.due = now
            elif part.due is None:
                code = part.child.wait()
                if part.ending is None:
                    self.ended_alone.append(
                        f"{part.name} ended by itself ({code}): {part.program.last_words()}"
                    )
                    self.tell(self.ended_alone[-1])
                part.due = now if part.ending is not None else now + 1.0
            elif now >= part.due:
                self.spawn(part)

    def resume_all(self) -> None:
        """End every fault that lasts: whatever stands still goes on, but for those that are gone for good."""
        for proxy in self._proxies:
            proxy.delay = 0.0
            proxy.blackhole(False)
        if self.server.pid:
            self.standstill.go_on(self.server.pid)
        for part in self.parts.values():
            self.go_on(part)
            if part.due is not None:
                part.due = min(part.due, time.monotonic())

    def clock_file(self, machine: str) -> Path:
        """The file with the seconds by which a machine's clock is off."""
        return self.folder / machine / "clock"

    # -- making parts

    def _proxy(self) -> Proxy:
        proxy = Proxy((HOST, self.server.port)).start()
        self._proxies.append(proxy)
        return proxy

    def _add(self, name: str, sort: str, machine: str, hook: str) -> None:
        home = self.folder / machine
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "machine").write_text(machine + "\n")
        seats = f"[bench]\nlanes = {LANES}\nbudget = {BUDGET}\n[local]\nlanes = {LANES}\n"
        (home / "seats.toml").write_text(seats)
        clock.shift(self.clock_file(machine), 0)
        proxy = self._proxy()
        config = self.config(proxy, home)
        env = {
            name: value
            for name, value in programs.environment(config, orphaned=DRAIN).items()
            if not name.startswith("GRIDQ_") or name in _KEPT
        } | {
            "GRIDQ_STAGES": ",".join(STAGES),
            "GRIDQ_DRAIN": str(DRAIN),
            "GRIDQ_QUARANTINE": str(QUARANTINE),
            "PYTHONPATH": os.pathsep.join(filter(None, [hook, os.environ.get("PYTHONPATH", "")])),
            witness.FILE: str(self.witness),
            clock.FILE: str(self.clock_file(machine)),
        }
        if sort == "router":
            env |= {"GRIDQ_QUOTAS": str(self.quotas), "GRIDQ_NARRATE": "1"}
        logs = self.folder / "logs" / machine
        match sort:
            case "router":
                program = programs.router(config, name.replace(".", "-"), logs, env)
            case "gateway":
                program = programs.gateway(self._ports[machine], logs, env, DRAIN)
            case _:
                program = programs.seat(config, sort, logs, env, DRAIN)
        self.parts[name] = Part(name, sort, machine, program, proxy)


_KEPT = {
    "GRIDQ_BROKER_URL",
    "GRIDQ_PREFIX",
    "GRIDQ_HOME",
    "GRIDQ_PROFILES",
    "GRIDQ_PARENT",
    "GRIDQ_PARENT_SECONDS",
}
"""What a child is told of this process's own settings: a chaos grid has the defaults."""


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # its number is somebody else's by now
        return False
    return True
