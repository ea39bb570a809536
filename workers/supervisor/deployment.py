"""The supervised parts of one home folder, with their run record, control socket and shutdown. `gridq up` and
`gridq worker` run one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from redis.exceptions import RedisError

from gridq.config.machine_id import get_host_id, get_machine_id
from gridq.config.settings import Settings
from gridq.protocol import queue_names
from gridq.seats import registry
from gridq.store.connection import connect, now_ms, redact_url
from gridq.store.keys import Keys
from gridq.store.scripts import Scripts
from workers.machine.run_records import RunRecord, read_process_start
from workers.machine.seats import Seat
from workers.supervisor import programs
from workers.supervisor.children import Part, Supervisor
from workers.supervisor.control_socket import ControlServer
from workers.supervisor.embedded_server import HOST
from workers.supervisor.programs import Program
from workers.supervisor.signals import SignalQueue
from workers.supervisor.status import read_grid

DRAIN_MARGIN_SECONDS = 10.0
"""Time after the drain at which a worker that has not ended is killed."""

ORPHAN_STOP_SECONDS = 3.0
"""Time in which parts end by themselves after this process, and with it their server, was killed."""

START_TIMEOUT_SECONDS = 60.0
"""Time after which `wait_until_live` no longer waits for a part."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
RELOAD_SIGNAL = signal.SIGUSR1
"""Makes `gridq up` and `gridq worker` reload their seats. SIGHUP does so for `gridq worker` alone: a terminal
that is closed sends it too, and ends `gridq up`.
"""


class Deployment:
    """The parts of one home that run under this process, as the program `name` (see `gridq.config.home`).

    Use it as a context, in the main thread. `report` gets a line for each event. Leaving the context stops
    every part in order, then calls `exit_callbacks`; another SIGINT or SIGTERM meanwhile makes that quicker.
    """

    def __init__(self, config: Settings, name: str, report: Callable[[str], None]) -> None:
        self.config = config
        self.name = name
        self.report = report
        self.machine = get_machine_id(config.home)
        self.logs = config.home / "logs"
        self.keys = Keys(config.prefix)
        self.supervisor = Supervisor(report, on_exit=self._release_part)
        self.descriptions: dict[str, str] = {}
        self.missing: list[str] = []
        self.details: dict[str, Any] = {}
        self.exit_callbacks: list[Callable[[], None]] = []
        self.ready = False
        self.started_at = time.time()
        self.record = RunRecord(config.home, name)
        self.signals = SignalQueue(*STOP_SIGNALS, signal.SIGHUP, RELOAD_SIGNAL)
        self._seats: dict[str, Seat] = {}
        self._state: dict[str, Any] = {}
        self._control: ControlServer | None = None
        self._received: list[int] = []

    def __enter__(self) -> Self:
        self.signals.__enter__()
        self.write_record()
        try:
            self._control = ControlServer(self.config.home, self.name, self.read_status)
        except OSError as exc:  # a file system without sockets
            self.report(f"gridq status will be slow, as the control socket cannot be opened: {exc}")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as cleanup:  # each step runs, whatever fails before
            cleanup.callback(self.signals.__exit__)
            cleanup.callback(self.record.close)
            if self._control is not None:
                cleanup.callback(self._control.close)
            for act in reversed(self.exit_callbacks):
                cleanup.callback(act)
            killed = self.supervisor.stop(self._wait_for_hurry)
            if killed:
                self.report(f"Killed, because they did not stop in time: {', '.join(killed)}")

    def make_environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a part: this home's settings and `more`."""
        # Once the server has ended with this process, a part can hand nothing back.
        own = "server" in self.supervisor.children
        seconds = ORPHAN_STOP_SECONDS if own else self.config.drain + DRAIN_MARGIN_SECONDS
        return programs.make_environment(self.config, more, orphaned=seconds)

    def add(self, part: Part, about: str) -> None:
        """Start a part. `about` is its description in `gridq status`."""
        self.descriptions[part.name] = about
        self.supervisor.add(part)
        self.write_record()

    def add_seat(self, seat: Seat) -> None:
        """Start the worker of one seat."""
        part = self.make_seat_program(seat)
        self._seats[part.name] = seat
        self.add(part, "  ".join(queue_names.format_offered(seat.queues)))

    def replace_seat(self, seat: Seat) -> None:
        """Start the worker of one seat, after the worker that serves it now has drained."""
        part = self.make_seat_program(seat)
        self._seats[part.name] = seat
        self.descriptions[part.name] = "  ".join(queue_names.format_offered(seat.queues))
        self.supervisor.replace(part)

    def list_seats(self) -> dict[str, Seat]:
        """Return the seats that are served, or will be again, by the names of their parts."""
        children = self.supervisor.children
        return {
            name: seat
            for name, seat in self._seats.items()
            if name in children and (children[name].kill_at is None or children[name].successor is not None)
        }

    def configure(self, config: Settings) -> None:
        """Use other settings for the parts that are started from now on."""
        self.config = config
        self.keys = Keys(config.prefix)

    def make_seat_program(self, seat: Seat) -> Program:
        """Return the worker of one seat as a part."""
        within = self.config.drain + DRAIN_MARGIN_SECONDS
        return programs.make_seat_worker(self.config, seat.name, self.logs, self.make_environment(), within)

    def wait_until_live(self) -> list[int]:
        """Supervise the parts until all are live or given up. Return the signals that ended this early."""
        until = time.monotonic() + START_TIMEOUT_SECONDS
        while self.list_starting() and time.monotonic() < until:
            received = self.run_once(0.05)
            if received:
                return received
        self.ready = True
        self.write_record()
        return []

    def run_once(self, max_seconds: float = 3600.0) -> list[int]:
        """Wait for the next event, at most `max_seconds`, and handle it. Return the signals received."""
        seconds = 0.0 if self._received else min(max_seconds, self.supervisor.next_due_in())
        received, self._received = [*self._received, *self.signals.wait(seconds)], []
        if self.supervisor.check():
            self.write_record()
        return received

    def is_stopping(self) -> bool:
        """Return whether a signal to stop was received. `run_once` returns that signal all the same."""
        self._received += self.signals.wait(0)
        return any(number in STOP_SIGNALS for number in self._received)

    def list_starting(self) -> list[str]:
        """Return the names of the parts that run but are not live yet."""
        running = {
            name: child for name, child in self.supervisor.children.items() if not child.gave_up_reason
        }
        try:
            with self._client() as client:
                live = {ad.seat: ad.started_at for ad in registry.read_advertisements(client, self.keys)}
                found = client.zrangebyscore(self.keys("seats"), now_ms(client), "+inf")
                routers = {name.decode() for name in found}
        except RedisError:
            return list(running)
        late = []
        for name, child in running.items():
            if name in self._seats:
                seat = f"{self.machine}.{self._seats[name].name}"
                if live.get(seat, 0.0) < child.started_at:
                    late.append(name)
            elif child.part.stop_order == programs.ROUTERS:
                pid = child.process.pid if child.process else None
                if f"{self.machine}.router-{pid}" not in routers:
                    late.append(name)
            elif child.part.stop_order == programs.FLOWER and not _accepts_connections(
                HOST, self.details["flower"]["port"]
            ):
                late.append(name)
            elif name == programs.GATEWAY:
                at = self.details[name]
                if not _accepts_connections(at["host"], at["port"]):
                    late.append(name)
        return late

    def read_status(self) -> dict[str, Any]:
        """Return the record of what runs here, and the state of the grid, as JSON without secrets."""
        state = {name: value for name, value in self._state.items() if name != "broker_url"}
        url = self.config.broker_url.get_secret_value()
        with self._client() as client:
            return {**state, "grid": read_grid(client, self.keys, url)}

    def write_record(self) -> None:
        """Write the record of what runs now."""
        parts = []
        for name, child in self.supervisor.children.items():
            pid = child.process.pid if child.process else None
            process_start = read_process_start(pid) if pid else None
            more = {
                "process_start": process_start,
                "about": self.descriptions.get(name, ""),
                "log": str(child.part.log),
            }
            parts.append({**child.to_json(), **more})
        url = self.config.broker_url.get_secret_value()
        self._state = {
            "program": self.name,
            "pid": os.getpid(),
            "process_start": read_process_start(os.getpid()),
            "started_at": self.started_at,
            "ready": self.ready,
            "home": str(self.config.home),
            "machine": self.machine,
            "logs": str(self.logs),
            "server": redact_url(url),
            "prefix": self.config.prefix,
            "drain": self.config.drain,
            "profiles": list(self.config.profiles),
            "parts": parts,
            "missing": self.missing,
            **self.details,
        }
        try:
            self.record.write(self._state)
        except OSError as exc:  # a full disk is no reason to stop what runs
            self.report(f"{self.record.path} cannot be written: {exc}")

    def _release_part(self, part: Part, pid: int, died: bool) -> None:
        """Release the leases of a dead part at once, instead of when they expire."""
        how = "died" if died else "go"
        if part.name in self._seats:
            release_leases(
                self.config, f"{self.machine}.{self._seats[part.name].name}", how, get_host_id(self.machine)
            )
        elif part.stop_order == programs.ROUTERS:
            release_leases(self.config, f"{self.machine}.router-{pid}", how)

    def _wait_for_hurry(self, seconds: float) -> bool:
        return any(number in STOP_SIGNALS for number in self.signals.wait(seconds))

    @contextlib.contextmanager
    def _client(self) -> Any:
        url = self.config.broker_url.get_secret_value()
        with connect(url, name=f"gridq-{self.name}", timeout=1.0, retry=False) as client:
            yield client


def _accepts_connections(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def release_leases(config: Settings, seat: str, how: str, host: str | None = None) -> None:
    """Release the leases of the dead worker of `seat`. `how`: as for `Scripts.leave`. `host`: only if the
    seat's last worker ran on that host, as another machine may serve the seat now.
    """
    url = config.broker_url.get_secret_value()
    client = connect(url, name="gridq-release", timeout=1.0, retry=False)
    with client, contextlib.suppress(RedisError):  # without a server the leases expire by themselves
        last: list[Any] = client.hmget(Keys(config.prefix)("seat", seat), "incarnation", "host")
        incarnation, where = (word.decode() if word else "" for word in last)
        if incarnation and host in (None, where):
            Scripts(client, config).leave(seat, incarnation, how)
