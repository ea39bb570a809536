"""`gridq up`: run a server, routers, a worker for each seat, a gateway and Flower on this machine."""

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
from gridq.config.home import (
    GRID_RECORD,
    SERVER_FOLDER,
    WORKER_RECORD,
    is_locked,
    make_folder_error,
    read_running_record,
)
from gridq.config.settings import Settings
from gridq.config.urls import is_loopback
from gridq.errors import BrokerUnreachable, ConfigError
from gridq.gateway.options import check_certificate, load_options
from gridq.profiles import profile
from gridq.store.capacity import check_persistence
from gridq.store.connection import connect, redact_url, translate_errors
from gridq.store.readiness import wait_for_server
from workers.machine.probing import probe_machine
from workers.machine.run_records import make_already_running_error
from workers.supervisor import programs
from workers.supervisor.announced_seats import AnnouncedSeats
from workers.supervisor.control_socket import query
from workers.supervisor.deployment import DRAIN_MARGIN_SECONDS, RELOAD_SIGNAL, Deployment
from workers.supervisor.embedded_server import (
    EmbeddedServer,
    choose_port,
    load_server,
    save_access,
)
from workers.supervisor.model_sharing import update_mirror
from workers.supervisor.worker import reload_seats

SERVER_START_SECONDS = 120.0
"""Time in which the server must answer. While it reads its data, it answers that it does."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `gridq up`. `seats`: names; empty: all seats of this machine."""

    seats: tuple[str, ...] = ()
    routers: int = 1
    flower: bool = True
    gateway: bool = True


@dataclass
class ServerPart:
    """The embedded server as a supervised part."""

    server: EmbeddedServer
    report: Callable[[str], None]
    is_stopping: Callable[[], bool]
    name: str = field(default="server", init=False)
    stop_order: int = field(default=programs.SERVER, init=False)
    stop_timeout: float = field(default=15.0, init=False)

    @property
    def log(self) -> Path:
        """Its log, beside its data."""
        return self.server.folder / "server.log"

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, or restart it with the same address and data."""
        self.server.start(SERVER_START_SECONDS, self.is_stopping, self.report)
        save_access(self.server)
        assert self.server.process is not None
        return self.server.process

    def last_log_line(self) -> str:
        return self.server.read_log_end() or "it logged nothing"


def run(
    config: Settings,
    options: UpOptions,
    *,
    report: Callable[[str], None],
    on_ready: Callable[[dict[str, Any]], None],
) -> None:
    """Start everything, call `on_ready` with the status once it is live, keep it running until a signal.

    The server is the one that GRIDQ_BROKER_URL or the machine's configuration names. If neither does, an
    embedded server is started, with its data in `<home>/server`. AlreadyRunning: another `gridq up`, or a
    `gridq worker`, runs in this home.
    """
    if is_locked(config.home, WORKER_RECORD):
        raise make_already_running_error(config.home, WORKER_RECORD)
    with Deployment(config, GRID_RECORD, report) as grid:
        report(f"Starting the grid of {config.home}")
        _start_server(grid)
        if grid.is_stopping():  # while the server read its data
            return
        for number in range(options.routers):
            part = programs.make_router(grid.config, f"router{number}", grid.logs, grid.make_environment())
            grid.add(part, "admits jobs, runs pure stages")
        found = probe_machine(grid.config, profile.load_profiles(grid.config.profiles))
        lent = found.select(options.seats)
        for seat in lent:
            grid.add_seat(seat)
        grid.missing = found.missing
        grid.details["notices"] = [seat.offer.notice for seat in lent if seat.offer.notice]
        update_mirror(grid)
        if options.gateway:
            _start_gateway(grid)
        if options.flower:
            _start_flower(grid)
        received = grid.wait_until_live()
        if not received:
            on_ready(grid.read_status())
        announced = AnnouncedSeats(grid, options.seats)
        announced.start()
        while not any(number != RELOAD_SIGNAL for number in received):
            announced.update()
            if received:
                reload_seats(grid, options.seats)
            received = grid.run_once()
        report("Stopping: workers finish their stages. Repeat the signal to stop at once")


def _start_server(grid: Deployment) -> None:
    """Start the server, or check the configured one, and tell this machine's programs where it is."""
    config = grid.config
    if "broker_url" in config.model_fields_set:
        with connect(config.broker_url.get_secret_value(), name="gridq-up", retry=False) as client:
            wait_for_server(client, grid.report, cancelled=grid.is_stopping)
            check_persistence(client)
        grid.details["broker_url"] = config.broker_url.get_secret_value()
    else:
        server = load_server(config.home / SERVER_FOLDER)
        grid.exit_callbacks.append(server.stop)
        try:
            server.start(SERVER_START_SECONDS, grid.is_stopping, grid.report)
        except BrokerUnreachable:
            if grid.is_stopping():
                return
            raise
        grid.configure(config.model_copy(update={"broker_url": SecretStr(server.url)}))
        grid.details["broker_url"] = server.url
        grid.add(
            ServerPart(server, grid.report, grid.is_stopping),
            f"{redact_url(server.url)}, data in {server.folder}",
        )


def _start_gateway(grid: Deployment) -> None:
    """Start the gateway as GRIDQ_GATEWAY_* configures it; if its port is taken, at another one."""
    options = load_options()
    check_certificate(options)
    if not is_loopback(options.host) and not _has_api_keys(grid):
        grid.missing.append(
            f"gateway: listening at {options.host} needs an API key; create one: gridq keys create"
        )
        return
    port, note = choose_port(options.port)
    scheme = "http" if options.certfile is None else "https"
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 for the URL
    host = anywhere.get(options.host) or (f"[{options.host}]" if ":" in options.host else options.host)
    url = f"{scheme}://{host}:{port}"
    grid.details["gateway"] = {"url": url, "host": host.strip("[]"), "port": port}
    within = grid.config.drain + DRAIN_MARGIN_SECONDS
    grid.add(programs.make_gateway(port, grid.logs, grid.make_environment(), within), url + note)


def _has_api_keys(grid: Deployment) -> bool:
    config = grid.config
    with (
        translate_errors(config.broker_url.get_secret_value()),
        connect(config.broker_url.get_secret_value(), name="gridq-up") as client,
    ):
        return bool(client.exists(grid.keys("api_keys")))


def _start_flower(grid: Deployment) -> None:
    port, note = choose_port(flower_login.PORT)
    url = f"http://127.0.0.1:{port}"
    password = str(flower_login.get_password_file(grid.config))
    grid.details["flower"] = {"url": url, "port": port, "user": flower_login.USER, "password_file": password}
    grid.add(programs.make_flower(port, grid.logs, grid.make_environment()), url + note)


def start_detached(config: Settings, options: UpOptions) -> dict[str, Any]:
    """Start `gridq up` as a background process, wait until it is ready and return its status.

    ConfigError: it ended; the error holds the last line of its log. AlreadyRunning: as `run`.
    """
    for name in (GRID_RECORD, WORKER_RECORD):
        if is_locked(config.home, name):
            raise make_already_running_error(config.home, name)
    log = config.home / "logs" / "up.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        out = log.open("wb")
    except OSError as exc:
        raise make_folder_error(log, exc, f"The log {log} cannot be written") from None
    command = [sys.executable, "-m", "gridq.cli", "up", f"--routers={options.routers}"]
    command += [f"--seat={name}" for name in options.seats]
    command.append("--flower" if options.flower else "--no-flower")
    command.append("--gateway" if options.gateway else "--no-gateway")
    with out:
        child = subprocess.Popen(  # noqa: S603 our own program and arguments
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    while True:
        record = read_running_record(config.home, GRID_RECORD)
        if record is not None and record["pid"] == child.pid and record["ready"]:
            record.pop("broker_url")  # it holds the password, and what is returned is shown
            return query(config.home, GRID_RECORD) or record
        if child.poll() is not None:
            lines = log.read_text("utf-8", "replace").strip().splitlines()
            raise ConfigError(
                "The grid did not start",
                {
                    "path": str(log),
                    "reason": lines[-1].removeprefix("error: ") if lines else "it logged nothing",
                },
            )
        time.sleep(0.05)
