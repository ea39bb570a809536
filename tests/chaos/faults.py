"""Inject the faults of a plan into a grid, and undo each when its time is over."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from redis.exceptions import RedisError

from gridq.errors import GridError
from tests.chaos import clock
from tests.chaos.disturbances import SERVER
from tests.chaos.endpoints.server import MODES
from tests.chaos.grid import DRAIN_SECONDS, ChaosGrid, Part
from tests.chaos.plan import Fault
from tests.chaos.proxy import Proxy
from workers.owner import recovery, switch

DAY = 86_400.0
CLIENT = "client"


def is_dispensable(part: Part, parts: Iterable[Part], always_restarted: Collection[str]) -> bool:
    """Return whether a part may stay down: at least two of each sort must be left, and those named in
    `always_restarted`.
    """
    like = [other for other in parts if other.sort == part.sort and not other.gone]
    return len(like) > 2 and part.name not in always_restarted


class FaultInjector:
    """Injects the faults of a plan. Everything runs on the caller's thread, in `tick`.

    `report(text)` gets a line for each fault.
    """

    def __init__(self, grid: ChaosGrid, faults: list[Fault], report: Callable[[str], None]) -> None:
        self.grid = grid
        self.report = report
        self.counts: Counter[str] = Counter()
        self._faults = faults
        self._next = 0
        self._undo: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._server_is_down = False
        self._pauses: Counter[str] = Counter()
        self._admin = grid.direct()

    def tick(self, elapsed: float) -> None:
        """Undo the faults that are over and inject those that are due, `elapsed` seconds after the start."""
        self._undo_until(time.monotonic())
        while self._next < len(self._faults) and self._faults[self._next].at <= elapsed:
            fault = self._faults[self._next]
            self._next += 1
            hit = self._inject(fault)
            if hit:
                self.counts[fault.kind] += 1
                lasts = "" if fault.seconds == 0 else f" for {fault.seconds:g} s"
                self.report(f"{elapsed:7.1f} s  {fault.kind:19}{hit.replace('@', lasts)}")

    def end(self) -> None:
        """Undo all faults."""
        self._next = len(self._faults)
        self._undo_until(math.inf)
        self.grid.resume_all()
        self._admin.close()

    def _undo_until(self, now: float) -> None:
        while self._undo and self._undo[0][0] <= now:
            heapq.heappop(self._undo)[2]()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._undo, (time.monotonic() + seconds, next(self._number), act))

    def _inject(self, fault: Fault) -> str:
        """Inject a fault and return what it hit, with `@` where its duration belongs; empty: there was no
        target.
        """
        act: Callable[[Fault], str] = getattr(self, "_" + fault.kind.replace("-", "_"))
        return act(fault)

    # -- targets

    def _running(self) -> list[Part]:
        return [part for part in self.grid.parts.values() if part.running]

    def _choose_part(self, fault: Fault) -> Part | None:
        parts = self._running()
        return parts[int(fault.pick * len(parts))] if parts else None

    def _choose_link(self, fault: Fault) -> tuple[str, Proxy]:
        """Return a proxy: that of a part, or that of the agents."""
        links = [(part.name, part.proxy) for part in self.grid.parts.values() if not part.gone]
        links.append((CLIENT, self.grid.client_proxy))
        return links[int(fault.pick * len(links))]

    def _kill_part(self, part: Part, seconds: float) -> str:
        if math.isinf(seconds) and not is_dispensable(
            part, self.grid.parts.values(), self.grid.layout.always_restarted
        ):
            seconds = 6.0
        self.grid.kill(part)
        self.grid.disturbances.add(part.name, seconds)
        if math.isinf(seconds):
            part.gone = True
            return f"{part.name} for good"
        part.restart_at = time.monotonic() + seconds
        return f"{part.name} for {seconds:g} s"

    # -- faults

    def _kill(self, fault: Fault) -> str:
        """Kill a worker whose sort is also live elsewhere, so that its stages can run again at once. If the
        server does not answer, kill any worker.
        """
        workers = [part for part in self._running() if part.seat]
        try:
            found: Any = self._admin.zrange(self.grid.keys("seats"), 0, -1)
        except (RedisError, OSError):
            return self._kill_one(fault, workers)
        live = {name.decode() for name in found}
        spare = [
            part
            for part in workers
            if any(like.name in live for like in workers if like.sort == part.sort and like is not part)
        ]
        return self._kill_one(fault, spare)

    def _router_kill(self, fault: Fault) -> str:
        return self._kill_one(fault, [part for part in self._running() if part.sort == "router"])

    def _gateway_kill(self, fault: Fault) -> str:
        return self._kill_one(fault, [part for part in self._running() if part.sort == "gateway"])

    def _kill_one(self, fault: Fault, parts: list[Part]) -> str:
        return self._kill_part(parts[int(fault.pick * len(parts))], fault.seconds) if parts else ""

    def _machine(self, fault: Fault) -> str:
        part = self._choose_part(fault)
        hit = [other for other in self._running() if part and other.machine == part.machine]
        return ", ".join([self._kill_part(other, fault.seconds) for other in hit])

    def _stop(self, fault: Fault) -> str:
        parts = [part for part in self._running() if part.terminated_at is None]
        chosen = int(fault.pick * (len(parts) + 1))
        if chosen < len(parts):
            part = parts[chosen]
            child = part.child
            self.grid.suspend(part)
            self.grid.disturbances.add(part.name, fault.seconds)

            def resume() -> None:
                if part.child is child:
                    self.grid.resume(part)

            self._later(fault.seconds, resume)
            return part.name + "@"
        pid = self.grid.server.pid
        if pid is None:
            return ""
        suspender = self.grid.suspender
        suspender.stop(pid)
        self.grid.disturbances.add(SERVER, fault.seconds)
        self._later(fault.seconds, lambda: suspender.resume(pid) if self.grid.server.pid == pid else None)
        return SERVER + "@"

    def _drain(self, fault: Fault) -> str:
        part = self._choose_part(fault)
        if part is None or part.terminated_at is not None:
            return ""
        self.grid.drain(part)
        self.grid.disturbances.add(part.name, DRAIN_SECONDS)
        return part.name

    def _server_restart(self, fault: Fault) -> str:
        return self._stop_server(fault, kill=False)

    def _server_kill(self, fault: Fault) -> str:
        return self._stop_server(fault, kill=True)

    def _stop_server(self, fault: Fault, *, kill: bool) -> str:
        if self._server_is_down:
            return ""
        self._server_is_down = True
        self.grid.stop_server(kill=kill)
        self.grid.disturbances.add(SERVER, fault.seconds)

        def restart_server() -> None:
            self.grid.server.start()
            self._server_is_down = False

        self._later(fault.seconds, restart_server)
        return SERVER + "@"

    def _cut(self, fault: Fault) -> str:
        name, proxy = self._choose_link(fault)
        reset = fault.size < 0.5
        proxy.cut(reset=reset)
        self.grid.disturbances.add(name)
        return f"{name} by {'RST' if reset else 'FIN'}"

    def _blackhole(self, fault: Fault) -> str:
        name, proxy = self._choose_link(fault)
        forget = fault.size < 0.6
        proxy.blackhole(True)
        self.grid.disturbances.add(name, fault.seconds)
        self._later(fault.seconds, lambda: proxy.blackhole(False, forget=forget))
        return f"{name}@" + (", then forgotten" if forget else "")

    def _delay(self, fault: Fault) -> str:
        name, proxy = self._choose_link(fault)
        proxy.delay = round(0.002 + fault.size * 0.1, 3)
        self.grid.disturbances.add(name, fault.seconds)

        def reset_delay() -> None:
            proxy.delay = 0.0

        self._later(fault.seconds, reset_delay)
        return f"{name} by {proxy.delay * 1000:.0f} ms@"

    def _clock(self, fault: Fault) -> str:
        machines = sorted({part.machine for part in self.grid.parts.values()})
        machine = machines[int(fault.pick * len(machines))]
        seconds = round((fault.size * 2 - 1) ** 3 * DAY, 1)
        clock.shift(self.grid.clock_file(machine), seconds)
        return f"{machine} by {seconds:+g} s"

    def _client_kill(self, fault: Fault) -> str:
        self.grid.disturbances.add(SERVER)
        return self._call_server(self._kill_clients, "every connection")

    def _kill_clients(self) -> None:
        for sort in ("normal", "pubsub"):
            self._admin.execute_command("CLIENT", "KILL", "TYPE", sort)  # type: ignore[no-untyped-call]

    def _script_flush(self, fault: Fault) -> str:
        return self._call_server(self._admin.script_flush, SERVER)

    def _call_server(self, act: Callable[[], object], hit: str) -> str:
        """Make the server do something; return `hit`, or nothing if the server cannot be reached now."""
        if self._server_is_down:
            return ""
        try:
            act()
        except (RedisError, GridError, OSError):
            return ""
        return hit

    def _quota(self, fault: Fault) -> str:
        self.grid.set_poor_agents_budget(False)
        self._later(
            fault.seconds + 3.0, lambda: self.grid.set_poor_agents_budget(True)
        )  # a router looks each 2 s
        return "the agent poor has no money@"

    def _pause(self, fault: Fault) -> str:
        """Pause a seat as its owner. At least one seat of each sort stays lent."""
        parts = [part for part in self.grid.parts.values() if part.seat and not part.gone]
        spare = [
            part
            for part in parts
            if any(
                like.sort == part.sort and like is not part and like.name not in self._pauses
                for like in parts
            )
        ]
        if not spare:
            return ""
        part = spare[int(fault.pick * len(spare))]
        home = self.grid.home(part.machine)
        switch.pause(home, part.seat)
        self.grid.disturbances.add(part.name, fault.seconds)
        self._pauses[part.name] += 1

        def resume() -> None:
            self._pauses[part.name] -= 1
            if not self._pauses[part.name]:
                del self._pauses[part.name]
                switch.resume(home, part.seat)

        self._later(fault.seconds, resume)
        return part.name + "@"

    # -- model endpoints

    def _endpoint_dead(self, fault: Fault) -> str:
        return self._break_endpoint(fault, "dead")

    def _endpoint_refusing(self, fault: Fault) -> str:
        return self._break_endpoint(fault, "refusing")

    def _endpoint_slow(self, fault: Fault) -> str:
        return self._break_endpoint(fault, "slow")

    def _endpoint_flapping(self, fault: Fault) -> str:
        return self._break_endpoint(fault, "flapping")

    def _endpoint_half_open(self, fault: Fault) -> str:
        return self._break_endpoint(fault, "half-open")

    def _break_endpoint(self, fault: Fault, mode: str) -> str:
        """Change the mode of an endpoint. The last one may only be slow: what all the others cannot do, it
        does.
        """
        endpoints = self.grid.endpoints
        names = list(self.grid.layout.endpoints)[: None if mode == "slow" else -1]
        if endpoints is None or not names:
            return ""
        name = names[int(fault.pick * len(names))]
        hows = MODES[mode]
        how = hows[int(fault.size * len(hows))]
        change = endpoints.set_mode(name, mode, how)
        if mode == "slow":  # what waits for it may be too late
            self.grid.disturbances.add(name, fault.seconds)

        def restore() -> None:
            if endpoints.restore(name, change) and mode == "refusing":  # its owner has renewed the key, say
                machine, _, seat = name.partition(".")
                recovery.request_retry(self.grid.home(machine), [seat])

        self._later(fault.seconds, restore)
        return f"{name} {how}@".replace(" @", "@")
