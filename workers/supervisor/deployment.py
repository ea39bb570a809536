"""What `gridq up` and `gridq worker` have in common: the parts of this home under one supervisor, what is
said of them, and their end.
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

from gridq.config.machine_id import host_id, machine_id
from gridq.config.settings import Settings
from gridq.seats import registry
from gridq.store.connection import connect, now_ms, safe_url
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

BEYOND_DRAIN = 10.0
"""Seconds beyond the drain until a worker that has not ended is killed."""

WITHOUT_SERVER = 3.0
"""Seconds that parts may take to end after this process, and with it their server, was killed."""

SETTLED = 60.0
"""Seconds after which a part that is not live yet is reported as such, and no longer waited for."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Deployment:
    """The parts of one home that run under this process, as the program `name` (see `gridq.config.home`).

    `say` gets one line for each event. From the main thread only. Leaving the block ends every part in
    order and then calls what is in `at_end`; a second SIGINT or SIGTERM meanwhile makes it quicker.
    """

    def __init__(self, config: Settings, name: str, say: Callable[[str], None]) -> None:
        self.config = config
        self.name = name
        self.say = say
        self.machine = machine_id(config.home)
        self.logs = config.home / "logs"
        self.keys = Keys(config.prefix)
        self.supervisor = Supervisor(say, lost=self._lost)
        self.about: dict[str, str] = {}
        self.missing: list[str] = []
        self.more: dict[str, Any] = {}
        self.at_end: list[Callable[[], None]] = []
        self.ready = False
        self.started_at = time.time()
        self.record = RunRecord(config.home, name)
        self.signals = SignalQueue(*STOP_SIGNALS, signal.SIGHUP)
        self._seats: dict[str, Seat] = {}
        self._state: dict[str, Any] = {}
        self._control: ControlServer | None = None
        self._came: list[int] = []

    def __enter__(self) -> Self:
        self.signals.__enter__()
        self.note()
        try:
            self._control = ControlServer(self.config.home, self.name, self.status)
        except OSError as exc:  # a file system without sockets
            self.say(f"gridq status will be slow: {exc}")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as last:  # whatever fails, the rest is given back all the same
            last.callback(self.signals.__exit__)
            last.callback(self.record.close)
            if self._control is not None:
                last.callback(self._control.close)
            for act in reversed(self.at_end):
                last.callback(act)
            killed = self.supervisor.stop(self._hurried)
            if killed:
                self.say(f"killed, as they did not end in time: {', '.join(killed)}")

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of every part."""
        # Where the server ends with this process, nothing could be handed back after that.
        own = "server" in self.supervisor.children
        seconds = WITHOUT_SERVER if own else self.config.drain + BEYOND_DRAIN
        return programs.environment(self.config, more, orphaned=seconds)

    def add(self, part: Part, about: str) -> None:
        """Start a part; `about` says what it does or where it is found."""
        self.about[part.name] = about
        self.supervisor.add(part)
        self.note()

    def add_seat(self, seat: Seat) -> None:
        """Start the worker of one seat."""
        part = self.seat_part(seat)
        self._seats[part.name] = seat
        self.add(part, "  ".join(seat.queues))

    def replace_seat(self, seat: Seat) -> None:
        """Start the worker of one seat, once the one that serves it now, if one does, has drained."""
        part = self.seat_part(seat)
        self._seats[part.name] = seat
        self.about[part.name] = "  ".join(seat.queues)
        self.supervisor.replace(part)

    def seats(self) -> dict[str, Seat]:
        """The seats that are served, or will be again, by the names of their parts."""
        children = self.supervisor.children
        return {
            name: seat
            for name, seat in self._seats.items()
            if name in children and (children[name].stop_by is None or children[name].successor is not None)
        }

    def configure(self, config: Settings) -> None:
        """Go on with other settings; parts that run keep theirs."""
        self.config = config
        self.keys = Keys(config.prefix)

    def seat_part(self, seat: Seat) -> Program:
        """The worker of one seat as a part."""
        within = self.config.drain + BEYOND_DRAIN
        return programs.seat(self.config, seat.name, self.logs, self.environment(), within)

    def wait_until_live(self) -> list[int]:
        """Look after the parts until all are live or given up; the signals that came before that."""
        until = time.monotonic() + SETTLED
        while self.waited_for() and time.monotonic() < until:
            came = self.keep(0.05)
            if came:
                return came
        self.ready = True
        self.note()
        return []

    def keep(self, most: float = 3600.0) -> list[int]:
        """Look after the parts for one turn, at most `most` seconds long; the signals that came."""
        patience = 0.0 if self._came else min(most, self.supervisor.next_look())
        came, self._came = [*self._came, *self.signals.wait(patience)], []
        if self.supervisor.look():
            self.note()
        return came

    def ending(self) -> bool:
        """Whether a signal has come that is to end it, for one who is busy with something else; `keep` gives
        it all the same.
        """
        self._came += self.signals.wait(0)
        return any(number in STOP_SIGNALS for number in self._came)

    def waited_for(self) -> list[str]:
        """The names of the parts that run but are not live yet."""
        running = {name: child for name, child in self.supervisor.children.items() if not child.given_up}
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
            elif child.part.place == programs.ROUTERS:
                pid = child.process.pid if child.process else None
                if f"{self.machine}.router-{pid}" not in routers:
                    late.append(name)
            elif child.part.place == programs.FLOWER and not _listens(HOST, self.more["flower"]["port"]):
                late.append(name)
            elif name == programs.GATEWAY:
                at = self.more[name]
                if not _listens(at["host"], at["port"]):
                    late.append(name)
        return late

    def status(self) -> dict[str, Any]:
        """What runs here, and how the grid is; JSON without any secret."""
        state = {name: value for name, value in self._state.items() if name != "broker_url"}
        url = self.config.broker_url.get_secret_value()
        with self._client() as client:
            return {**state, "grid": read_grid(client, self.keys, url)}

    def note(self) -> None:
        """Write down what runs now."""
        parts = []
        for name, child in self.supervisor.children.items():
            pid = child.process.pid if child.process else None
            born = read_process_start(pid) if pid else None
            more = {"born": born, "about": self.about.get(name, ""), "log": str(child.part.log)}
            parts.append({**child.describe(), **more})
        url = self.config.broker_url.get_secret_value()
        self._state = {
            "program": self.name,
            "pid": os.getpid(),
            "born": read_process_start(os.getpid()),
            "started_at": self.started_at,
            "ready": self.ready,
            "home": str(self.config.home),
            "machine": self.machine,
            "logs": str(self.logs),
            "server": safe_url(url),
            "prefix": self.config.prefix,
            "drain": self.config.drain,
            "profiles": list(self.config.profiles),
            "parts": parts,
            "missing": self.missing,
            **self.more,
        }
        try:
            self.record.write(self._state)
        except OSError as exc:  # a full disk is no reason to stop what runs
            self.say(f"what runs could not be written down: {exc}")

    def _lost(self, part: Part, pid: int, died: bool) -> None:
        """A part is dead: what it had leased is free at once, not only when its lease lapses."""
        how = "died" if died else "go"
        if part.name in self._seats:
            release_leases(self.config, f"{self.machine}.{self._seats[part.name].name}", how, host_id(self.machine))
        elif part.place == programs.ROUTERS:
            release_leases(self.config, f"{self.machine}.router-{pid}", how)

    def _hurried(self, seconds: float) -> bool:
        return any(number in STOP_SIGNALS for number in self.signals.wait(seconds))

    @contextlib.contextmanager
    def _client(self) -> Any:
        url = self.config.broker_url.get_secret_value()
        with connect(url, name=f"gridq-{self.name}", timeout=1.0, retry=False) as client:
            yield client


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def release_leases(config: Settings, seat: str, how: str, host: str | None = None) -> None:
    """Give back what the dead worker of `seat` had leased. `how`: as for `Scripts.leave`. Where `host` is
    given, only if the seat's last worker ran there: another machine may have taken the seat over.
    """
    url = config.broker_url.get_secret_value()
    client = connect(url, name="gridq-release", timeout=1.0, retry=False)
    with client, contextlib.suppress(RedisError):  # the server is away: the leases lapse by themselves
        last: list[Any] = client.hmget(Keys(config.prefix)("seat", seat), "incarnation", "host")
        incarnation, where = (word.decode() if word else "" for word in last)
        if incarnation and host in (None, where):
            Scripts(client, config).leave(seat, incarnation, how)
