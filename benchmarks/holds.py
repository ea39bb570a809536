"""Hold and settle: what a claim and a completion take in the server with 1,000 live seats and 50 agents, all
under budgets and quotas, beside one seat and one agent under the same; and what a worker calls for a stage.

Both sides stand on one server and take turns. A stage costs money: its estimate is held when it is claimed,
and what it used is settled when it is complete.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from redis import Redis

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measured, Ratio, percentile, tell
from benchmarks.scripts import QUEUE, State, timing, undisturbed
from gridq.config.settings import settings
from gridq.limits.quotas_file import AgentLimit, Limits, SeatLimit, TeamLimit
from gridq.protocol.models import Limit, Usage
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from workers.supervisor.embedded_server import EmbeddedServer

COST = 10_000
"""Micro-dollars that a stage is estimated at."""

USED = Usage(micro_dollars=9_000, tokens_in=300, tokens_out=100)
PLENTY = 10**15
"""Micro-dollars of every budget: all are checked, none is used up."""

WINDOWS = ("5h", "day", "week", "month")
WAITING = 10
"""Stages of each agent that wait all the while."""

TURN = 10
"""Stages of one side before it is the other's turn: what disturbs the machine disturbs both."""

COUNTED = 50
"""Stages whose commands are counted."""

GROWTH = 1.2
CALLS = 2.0
"""One claim, one completion."""


class Side(State):
    """Live seats and agents. With `budgets` each seat has so many of its machine's own, one a window, and the
    operator's quotas give one more to each seat, agent and team, to the owner of the seats, to the family of
    their model and to the whole grid.
    """

    def __init__(self, store: Redis, name: str, seats: int, agents: int, budgets: int) -> None:
        super().__init__(store, settings(), name)
        self.seats = [f"here.s{number}" for number in range(seats)]
        self.agents = [f"a{number}" for number in range(agents)]
        self._stages = 0
        for seat in self.seats:
            self.scripts.register(
                seat, "inc", host="here", concurrency=1, queues=[QUEUE], record_ttl_ms=3_600_000,
                limits=_money(WINDOWS[:budgets]), requests_per_minute=100_000 if budgets else None, owner="ann",
                families={QUEUE: ["family"]},
            )  # fmt: skip
        if budgets:
            limits = Limits(
                {agent: AgentLimit("team", PLENTY, 10**8) for agent in self.agents},
                {"team": TeamLimit(PLENTY, 10**8)},
                {seat: SeatLimit(_money(["month"]), 100_000) for seat in self.seats},
                digest="bench",
                owners={"ann": _money(["month"])},
                families={"family": _money(["month"])},
                grid=_money(["month"]),
            )
            self.scripts.limit(limits.digest, "{}", limits.to_fields())
        for agent in self.agents * WAITING:
            self.admit([COST], agent)

    def turn(self, stages: int = TURN) -> None:
        """One stage after the other, of the next agent and on the next seat: admitted, claimed, complete."""
        for _ in range(stages):
            seat = self._admit()
            self.complete(self.claim(seat), seat, go_on=False, used=USED)
        self.store.unlink(
            *(self.keys.queue(f"seat:{seat}") for seat in self.seats)
        )  # wake-ups, as workers take them

    def commands(self, stages: int) -> dict[str, float]:
        """How many commands the server runs for a claim and for a completion, the mean of so many stages."""
        counts = {"claim": 0, "complete": 0}
        for _ in range(stages):
            seat = self._admit()
            before = self._commands_so_far()
            claim = self.claim(seat)
            between = self._commands_so_far()
            self.complete(claim, seat, go_on=False, used=USED)
            counts["claim"] += between - before
            counts["complete"] += self._commands_so_far() - between
        return {script: count / stages for script, count in counts.items()}

    def _admit(self) -> str:
        """Admit a stage of the next agent; the seat whose turn it is."""
        self.admit([COST], self.agents[self._stages % len(self.agents)])
        self._stages += 1
        return self.seats[self._stages % len(self.seats)]

    def _commands_so_far(self) -> int:
        stats: Any = self.store.info("commandstats")
        ours = ("cmdstat_info", "cmdstat_evalsha", "cmdstat_eval")
        return sum(about["calls"] for name, about in stats.items() if name not in ours)


def _money(windows: Sequence[str]) -> tuple[Limit, ...]:
    return tuple(Limit(resource="money", window=window, amount=PLENTY) for window in windows)


def run(
    *, seats: int = 1_000, agents: int = 50, budgets: int = len(WINDOWS), stages: int = 2_000, jobs: int = 50
) -> list[Measured]:
    """Times of `stages` stages on each side, then what a worker calls for each of `jobs`."""
    found = beside(seats=seats, agents=agents, budgets=budgets, stages=stages)
    calls = worker_calls(jobs)
    tell(", ".join(f"{name} {number}" for name, number in sorted(calls.items())))
    each = calls.total() / jobs
    return [*found, Figure("calls of scripts by a worker for a stage", each, "round trips", CALLS)]


def beside(*, seats: int, agents: int, budgets: int, stages: int) -> list[Measured]:
    """Times and commands in the server beside those of one seat and one agent."""
    with EmbeddedServer() as server, connect(server.url, name="bench") as store, undisturbed(server.pid):
        few = Side(store, "few", 1, 1, budgets)
        many = Side(store, "many", seats, agents, budgets)
        free = Side(store, "free", 1, 1, 0)
        sides = (few, many, free)
        for side in sides:  # warm
            side.turn()
        with timing(store, *(side.scripts for side in sides)) as times:
            for _ in range(stages // TURN):
                for side in sides:
                    side.turn()
        commands = [side.commands(COUNTED) for side in sides]
    found: list[Measured] = []
    for what, script in (("hold (claim)", "claim"), ("settle (complete)", "complete")):
        one, all_, none = (percentile(each[script], 0.5) for each in times)
        tell(
            f"{what} on one seat without any budget or quota: {none:.0f} µs, {commands[2][script]:g} commands"
        )
        about, other = (
            f"{what}, {seats:,} seats and {agents} agents, {budgets} budgets a seat",
            "1 seat, 1 agent",
        )
        found += [
            Ratio(f"{about}, p50 in the server", all_, one, "µs", GROWTH, other=other),
            Ratio(
                f"{about}, commands in the server",
                commands[1][script],
                commands[0][script],
                "commands",
                GROWTH,
                other=other,
            ),
        ]
    return found


def worker_calls(jobs: int) -> Counter[str]:
    """The scripts that a worker of one slot calls while so many jobs of one stage go through it, one by one.

    Renewals, which go by the clock, are left out, and claims that find nothing: under load a wake-up may be rung
    twice.
    """
    with BenchGrid(1, 1) as grid:
        grid.client.result(grid.sleep(0), 30)  # warm
        with Watched(grid.server.url, grid.config.prefix, f"gridq-{grid.names[0]}") as watched:
            for _ in range(jobs):
                grid.client.result(grid.sleep(0), 30)
    return Counter(
        call.script
        for call in watched.calls
        if call.script not in ("", "renew") and (call.held or call.script != "claim")
    )


@dataclass(slots=True)
class Call:
    """One command: the address it came from, the script that it calls (else ""), and whether it has opened a
    lease.
    """

    at: str
    script: str
    held: bool = False


class Watched:
    """The calls of scripts over connections called `name`, as the server's MONITOR tells of them."""

    def __init__(self, url: str, prefix: str, name: str) -> None:
        self.calls: list[Call] = []
        self._name = name
        self._addresses: set[str] = set()
        self._opened = f"ZADD {prefix}.leases "
        self._end = f"{prefix}.end-of-the-watch"
        self._store = connect(url, name="bench-watched")
        shas = Scripts(self._store, settings()).shas
        self._names = {sha: script for script, sha in shas.items()}

    def __enter__(self) -> Self:
        self._monitor: Any = self._store.monitor()  # type: ignore[no-untyped-call]
        self._monitor.__enter__()
        self._look()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._look()  # some may have been opened since
        self._store.exists(self._end)
        self._thread.join(10)
        self._monitor.__exit__(None, None, None)
        self._store.close()
        self.calls = [call for call in self.calls if call.at in self._addresses]

    def _look(self) -> None:
        clients: Any = self._store.client_list()
        self._addresses |= {client["addr"] for client in clients if client["name"] == self._name}

    def _listen(self) -> None:
        while True:
            told = self._monitor.next_command()
            command = told["command"]
            if told["client_type"] == "lua":
                if command.startswith(self._opened):
                    self.calls[-1].held = True
                continue
            if self._end in command:
                return
            words = command.split(" ", 2)
            at = f"{told['client_address']}:{told['client_port']}"
            script = self._names.get(words[1], "?") if words[0] == "EVALSHA" else ""
            self.calls.append(Call(at, script))
