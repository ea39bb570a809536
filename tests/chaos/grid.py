"""The grid under test: a server, routers, gateways and several machines as child processes, each behind its
own proxy.
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

from gridq.config.home import write_private
from gridq.config.settings import Settings
from gridq.errors import ConfigError, StartTimeout
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests.chaos import clock, time_zone, witness
from tests.chaos.disturbances import Disturbances
from tests.chaos.endpoints.control import EndpointProcess
from tests.chaos.layout import AMPLE_DOLLARS, Layout, Machine, make_placeholder
from tests.chaos.proxy import HOST, Proxy
from tests.chaos.suspension import Suspender
from workers.supervisor import programs
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port, is_port_free
from workers.supervisor.programs import Program

CHECKOUT = str(Path(__file__).parents[2])
"""The folder from which the programs import `tests.chaos`."""
GATEWAYS = 2
START_TIMEOUT_SECONDS = 120.0
"""Seconds within which the grid must be live."""
USUAL_START_SECONDS = 10.0
"""Seconds that it takes to be, about."""
DRAIN_SECONDS = 2.0
QUARANTINE_SECONDS = 4.0
"""Seconds after which a quarantined stage fails: no operator releases it."""
STOP_TIMEOUT_SECONDS = 60.0
"""Seconds that a part may take to stop after SIGTERM while faults go on."""


@dataclass
class Part:
    """One program: a router, a gateway, or the worker of a machine's seat `seat`. Seats of one `sort` can
    replace each other.
    """

    name: str
    sort: str
    machine: str
    program: Program
    proxy: Proxy
    seat: str = ""
    child: subprocess.Popen[bytes] | None = None
    gone: bool = False
    """Killed and not restarted."""
    terminated_at: float | None = None
    """The monotonic time of its SIGTERM."""
    restart_at: float | None = None
    """The monotonic time of its restart."""

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None


class ChaosGrid:
    """The machines of `layout`, `routers` routers and two gateways, all below `folder`.

    `report(text)` gets a line for each part that ends unexpectedly.
    """

    def __init__(
        self,
        folder: Path,
        *,
        layout: Layout,
        routers: int = 2,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = folder
        self.layout = layout
        self.report = report
        self.prefix = "chaos:"
        self.keys = Keys(self.prefix)
        self.server = EmbeddedServer(folder / "server", appendonly=True, fsync="always")
        self.witness = folder / "witness"
        self.calls = folder / "calls"
        """The file of the endpoints."""
        self.endpoints: EndpointProcess | None = None
        self.disturbances = Disturbances()
        self.quotas = folder / "quotas.toml"
        self.parts: dict[str, Part] = {}
        self.deaths: list[tuple[int, int]] = []
        """(monotonic ms, process id) of each program that was killed."""
        self.unexpected_ends: list[str] = []
        self.late_ends: list[str] = []
        self._routers = [f"r{number + 1}" for number in range(routers)]
        self._ports = {f"g{number + 1}": find_free_port() for number in range(GATEWAYS)}
        self._proxies: list[Proxy] = []
        self._groups: list[int] = []
        self._zone: dict[str, str] = {}
        self.suspender = Suspender()

    # -- life

    def start(self) -> Self:
        """Start everything and return once every seat is live. ConfigError, StartTimeout: it failed."""
        self.server.start()
        self.set_poor_agents_budget(True)
        if self.layout.endpoints:
            self.endpoints = EndpointProcess(
                self.calls, self.layout.endpoints, self.layout.answer_seconds
            ).start()
        hook = clock.install(self.folder / "hook")
        if self.layout.midnight is not None:
            begins = time.time() + USUAL_START_SECONDS + self.layout.midnight
            self._zone = time_zone.install(self.folder / "zones", begins)
        for machine in self.layout.machines:
            for seat, sort in machine.seats.items():
                self._add(machine, sort, hook, seat)
        for name in self._routers:
            self._add(Machine(name, {}, ""), "router", hook)
        for name in self._ports:
            self._add(Machine(name, {}, ""), "gateway", hook)
        self.client_proxy = self._proxy()
        for part in self.parts.values():
            self.spawn(part)
        until = time.monotonic() + START_TIMEOUT_SECONDS
        with self.direct() as client:
            while client.zcard(self.keys("seats")) < len(self.parts) - GATEWAYS or any(
                map(is_port_free, self._ports.values())
            ):
                for part in self.parts.values():
                    if not part.running:
                        raise ConfigError(
                            f"{part.name} ended while it started", {"reason": part.program.last_log_line()}
                        )
                if time.monotonic() > until:
                    raise StartTimeout("The chaos grid was not live in time", {"path": str(self.folder)})
                time.sleep(0.1)
        return self

    def stop(self) -> list[str]:
        """Stop every program, then the server. Return a sentence for each that had to be killed or
        is left.
        """
        self.resume_all()
        killed = []
        for last in (False, True):  # routers: they look after what workers hand back
            parts = [part for part in self.parts.values() if (part.sort == "router") is last]
            group = [part for part in parts if part.child is not None]
            late = programs.stop_processes(
                [(part.child, DRAIN_SECONDS + 20.0) for part in group if part.child is not None]
            )
            killed += [part.name for part in group if part.child in late]
        for proxy in self._proxies:
            proxy.close()
        if self.endpoints is not None:
            self.endpoints.stop()
        self.server.stop()
        self.suspender.close()
        return [f"{name} had to be killed" for name in killed] + [
            f"processes of group {pid} are left" for pid in self._groups if _exists(pid)
        ]

    def direct(self) -> redis.Redis:
        """Return a client of the server itself, without a proxy."""
        return connect(self.server.url, name="chaos-judge", timeout=2, retry=False)

    def config(self, proxy: Proxy, home: Path) -> Settings:
        """Return the settings of a program that reaches the server through `proxy`."""
        url = f"redis://:{self.server.password}@{HOST}:{proxy.port}/0"
        return Settings(
            broker_url=SecretStr(url),
            prefix=self.prefix,
            home=home,
            profiles=self.layout.profiles,
            stages=self.layout.stages,
            stages_dir=self.layout.stages_dir,
            quarantine=QUARANTINE_SECONDS,
        )

    @property
    def urls(self) -> str:
        """The URLs of the gateways, as a client takes them."""
        return ",".join(f"http://{HOST}:{port}" for port in self._ports.values())

    # -- faults

    def spawn(self, part: Part) -> None:
        """Start or restart a part."""
        part.child = part.program.start()
        self._groups.append(part.child.pid)
        part.restart_at = part.terminated_at = None

    def kill(self, part: Part) -> None:
        """Kill a part as a power cut would."""
        if part.child is not None and part.running:
            self.deaths.append((time.monotonic_ns() // 1_000_000, part.child.pid))
            programs.kill_process(part.child)
        part.terminated_at = None

    def suspend(self, part: Part) -> None:
        """Suspend a running part by SIGSTOP, until `resume` or the end of this process."""
        if part.child is not None and part.running:
            self.suspender.stop(part.child.pid)

    def resume(self, part: Part) -> None:
        """Resume a suspended part."""
        if part.child is not None and part.running:
            self.suspender.resume(part.child.pid)

    def drain(self, part: Part) -> None:
        """Stop a part by SIGTERM. It is restarted once it has ended."""
        if part.child is not None and part.running and part.terminated_at is None:
            part.child.send_signal(signal.SIGTERM)
            part.terminated_at = time.monotonic()

    def stop_server(self, *, kill: bool) -> None:
        """Stop the server by SIGTERM or SIGKILL. `server.start` brings it back."""
        if self.server.pid:
            self.suspender.resume(self.server.pid)
        if kill:
            self.server.kill()
        else:
            self.server.stop()

    def set_poor_agents_budget(self, rich: bool) -> None:
        """Give the agent `poor` all the money it wants, or none."""
        write_private(self.quotas, self.layout.quotas.format(dollars=AMPLE_DOLLARS if rich else 0.000001))

    def tick(self) -> None:
        """Restart the parts that are due, and report those that ended unexpectedly."""
        now = time.monotonic()
        for part in self.parts.values():
            if part.gone or part.child is None:
                continue
            if part.running:
                if part.terminated_at is not None and now > part.terminated_at + STOP_TIMEOUT_SECONDS:
                    self.late_ends.append(
                        f"{part.name} had not ended {STOP_TIMEOUT_SECONDS:g} s after SIGTERM"
                    )
                    self.kill(part)
                    part.restart_at = now
            elif part.restart_at is None:
                code = part.child.wait()
                if part.terminated_at is None:
                    self.unexpected_ends.append(
                        f"{part.name} ended by itself ({code}): {part.program.last_log_line()}"
                    )
                    self.report(self.unexpected_ends[-1])
                part.restart_at = now if part.terminated_at is not None else now + 1.0
            elif now >= part.restart_at:
                self.spawn(part)

    def resume_all(self) -> None:
        """End every lasting fault: resume the proxies, the server and the parts, and restart those that are
        due.
        """
        for proxy in self._proxies:
            proxy.delay = 0.0
            proxy.blackhole(False)
        if self.server.pid:
            self.suspender.resume(self.server.pid)
        for part in self.parts.values():
            self.resume(part)
            if part.restart_at is not None:
                part.restart_at = min(part.restart_at, time.monotonic())

    def clock_file(self, machine: str) -> Path:
        """Return the file with the seconds by which a machine's clock is off."""
        return self.home(machine) / "clock"

    # -- parts

    def _proxy(self) -> Proxy:
        proxy = Proxy((HOST, self.server.port)).start()
        self._proxies.append(proxy)
        return proxy

    def _fill_in_urls(self, terms: str) -> str:
        """Return the text of a seats.toml with the URLs of the endpoints."""
        if self.endpoints is None:
            return terms
        for name in self.layout.endpoints:
            terms = terms.replace(make_placeholder(name), self.endpoints.get_url(name))
        return terms

    def home(self, machine: str) -> Path:
        """Return a machine's home folder."""
        return self.folder / machine

    def _add(self, machine: Machine, sort: str, hook: str, seat: str = "") -> None:
        name = f"{machine.name}.{seat or sort}"
        home = self.home(machine.name)
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "machine").write_text(machine.name + "\n")
        (home / "seats.toml").write_text(self._fill_in_urls(machine.terms))
        clock.shift(self.clock_file(machine.name), 0)
        proxy = self._proxy()
        config = self.config(proxy, home)
        env = {
            name: value
            for name, value in programs.make_environment(config, orphaned=DRAIN_SECONDS).items()
            if not name.startswith("GRIDQ_") or name in _CHILD_SETTINGS
        } | {
            **self.layout.env,
            **self._zone,
            "GRIDQ_STAGES": ",".join(self.layout.stages),
            "GRIDQ_DRAIN": str(DRAIN_SECONDS),
            "GRIDQ_QUARANTINE": str(QUARANTINE_SECONDS),
            "PYTHONPATH": os.pathsep.join(filter(None, [hook, CHECKOUT, os.environ.get("PYTHONPATH", "")])),
            witness.FILE: str(self.witness),
            clock.FILE: str(self.clock_file(machine.name)),
        }
        if self.layout.stages_dir is not None:
            env["GRIDQ_STAGES_DIR"] = str(self.layout.stages_dir)
        if sort == "router":
            env |= {"GRIDQ_QUOTAS": str(self.quotas), "GRIDQ_NARRATE": "1"}
        logs = self.folder / "logs" / machine.name
        if seat:
            program = programs.make_seat_worker(config, seat, logs, env, DRAIN_SECONDS)
        elif sort == "router":
            program = programs.make_router(config, name.replace(".", "-"), logs, env)
        else:
            program = programs.make_gateway(self._ports[machine.name], logs, env, DRAIN_SECONDS)
        self.parts[name] = Part(name, sort, machine.name, program, proxy, seat)


_CHILD_SETTINGS = {
    "GRIDQ_BROKER_URL",
    "GRIDQ_PREFIX",
    "GRIDQ_HOME",
    "GRIDQ_PROFILES",
    "GRIDQ_PARENT",
    "GRIDQ_PARENT_SECONDS",
}
"""The settings that children get; all others have their defaults."""


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # its number is somebody else's by now
        return False
    return True
