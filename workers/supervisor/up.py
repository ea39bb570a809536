"""`gridq up`: server, routers, a worker for each seat, a gateway and Flower on this machine, until it is told
to stop.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gridq.config import flower_login
from gridq.config.home import GRID, SERVER, held, running, unusable
from gridq.config.settings import Settings
from gridq.config.urls import is_loopback
from gridq.errors import BrokerUnreachable, ConfigError
from gridq.gateway.options import check_certificate, gateway_options
from gridq.profiles import profile
from gridq.store.capacity import check_kept
from gridq.store.connection import connect, safe_url, translated
from gridq.store.readiness import await_server
from workers.machine.probing import probe_machine
from workers.machine.run_records import make_already_running_error
from workers.supervisor import programs
from workers.supervisor.control_socket import query
from workers.supervisor.deployment import BEYOND_DRAIN, Deployment
from workers.supervisor.embedded_server import EmbeddedServer, free_port, is_free, save_access, load_server

STARTING = 120.0
"""Seconds within which the server answers; while it reads its data it answers so."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `gridq up` is asked for: some seats only (empty: all), how many routers, Flower and a gateway or
    not.
    """

    seats: tuple[str, ...] = ()
    routers: int = 1
    flower: bool = True
    gateway: bool = True


@dataclass
class ServerPart:
    """The embedded server as a part of the supervisor's."""

    server: EmbeddedServer
    say: Callable[[str], None]
    ending: Callable[[], bool]
    name: str = field(default="server", init=False)
    place: int = field(default=programs.SERVER, init=False)
    stop_in: float = field(default=15.0, init=False)

    @property
    def log(self) -> Path:
        """Its log stands beside its data."""
        return self.server.folder / "server.log"

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, or start it again with the same address and its data."""
        self.server.start(STARTING, self.ending, self.say)
        save_access(self.server)
        assert self.server.process is not None
        return self.server.process

    def last_words(self) -> str:
        """The end of its log."""
        return self.server.log_end() or "it said nothing"


def run(
    config: Settings,
    wanted: UpOptions,
    *,
    say: Callable[[str], None],
    ready: Callable[[dict[str, Any]], None],
) -> None:
    """Start everything, call `ready` with what runs once it is live, keep it running until a signal.

    Where GRIDQ_BROKER_URL or the machine's configuration names a server, that is the grid's; else one of our
    own, with its data in `<home>/server`. AlreadyRunning: another `gridq up` has this home.
    """
    with Deployment(config, GRID, say) as grid:
        say(f"Starting the grid of {config.home}")
        _start_server(grid)
        if grid.ending():  # while the server read its data
            return
        for number in range(wanted.routers):
            part = programs.router(grid.config, f"router{number}", grid.logs, grid.environment())
            grid.add(part, "admits jobs, runs pure stages")
        found = probe_machine(grid.config, profile.load(grid.config.profiles))
        for seat in found.select(wanted.seats):
            grid.add_seat(seat)
        grid.missing = found.missing
        if wanted.gateway:
            _start_gateway(grid)
        if wanted.flower:
            _start_flower(grid)
        came = grid.wait_until_live()
        if not came:
            ready(grid.status())
        while not came:
            came = grid.keep()
        say("Stopping: workers finish what they run; the same signal again is quicker")


def _start_server(grid: Deployment) -> None:
    """Start the server, or have a look at the one that is given, and let this machine's programs find it."""
    config = grid.config
    if "broker_url" in config.model_fields_set:
        with connect(config.broker_url.get_secret_value(), name="gridq-up", retry=False) as look:
            await_server(look, grid.say, cancelled=grid.ending)
            check_kept(look)
        grid.more["broker_url"] = config.broker_url.get_secret_value()
    else:
        server = load_server(config.home / SERVER)
        grid.at_end.append(server.stop)
        try:
            server.start(STARTING, grid.ending, grid.say)
        except BrokerUnreachable:
            if grid.ending():
                return
            raise
        grid.configure(config.model_copy(update={"broker_url": SecretStr(server.url)}))
        grid.more["broker_url"] = server.url
        grid.add(
            ServerPart(server, grid.say, grid.ending), f"{safe_url(server.url)}, data in {server.folder}"
        )


def _start_gateway(grid: Deployment) -> None:
    """The gateway, as GRIDQ_GATEWAY_* has it; at another port where its own is taken."""
    options = gateway_options()
    check_certificate(options)
    if not is_loopback(options.host) and not _asks_for_keys(grid):
        grid.missing.append(
            f"gateway: None listens at {options.host} while the grid has no API key (gridq keys create)"
        )
        return
    port = options.port if options.port and is_free(options.port) else free_port()
    scheme = "http" if options.certfile is None else "https"
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 what stands for all addresses is none itself
    host = anywhere.get(options.host) or (f"[{options.host}]" if ":" in options.host else options.host)
    url = f"{scheme}://{host}:{port}"
    grid.more["gateway"] = {"url": url, "host": host.strip("[]"), "port": port}
    within = grid.config.drain + BEYOND_DRAIN
    grid.add(programs.gateway(port, grid.logs, grid.environment(), within), url)


def _asks_for_keys(grid: Deployment) -> bool:
    config = grid.config
    with (
        translated(config.broker_url.get_secret_value()),
        connect(config.broker_url.get_secret_value(), name="gridq-up") as client,
    ):
        return bool(client.exists(grid.keys("api_keys")))


def _start_flower(grid: Deployment) -> None:
    port = flower_login.PORT if is_free(flower_login.PORT) else free_port()
    url = f"http://127.0.0.1:{port}"
    password = str(flower_login.password_file(grid.config))
    grid.more["flower"] = {"url": url, "port": port, "user": flower_login.USER, "password_file": password}
    grid.add(programs.flower(port, grid.logs, grid.environment()), url)


def start_detached(config: Settings, wanted: UpOptions) -> dict[str, Any]:
    """Start `gridq up` as a process of its own, wait until it is ready; what runs.

    ConfigError: it ended instead; what it said stands in the error. AlreadyRunning: as `run`.
    """
    if held(config.home, GRID):
        raise make_already_running_error(config.home, GRID)
    log = config.home / "logs" / "up.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        out = log.open("wb")
    except OSError as exc:
        raise unusable(log, exc, f"The log {log} cannot be written") from None
    command = [sys.executable, "-m", "gridq.cli", "up", f"--routers={wanted.routers}"]
    command += [f"--seat={name}" for name in wanted.seats]
    command.append("--flower" if wanted.flower else "--no-flower")
    command.append("--gateway" if wanted.gateway else "--no-gateway")
    with out:
        child = subprocess.Popen(  # noqa: S603 our own program and arguments
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    while True:
        noted = running(config.home, GRID)
        if noted is not None and noted["pid"] == child.pid and noted["ready"]:
            noted.pop("broker_url")  # it holds the password, and what is returned is shown
            return query(config.home, GRID) or noted
        if child.poll() is not None:
            lines = log.read_text("utf-8", "replace").strip().splitlines()
            raise ConfigError(
                "The grid did not start",
                {
                    "path": str(log),
                    "reason": lines[-1].removeprefix("error: ") if lines else "it said nothing",
                },
            )
        time.sleep(0.05)
