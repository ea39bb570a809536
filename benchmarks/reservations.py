"""Measure the cost of reservations under budgets and quotas.

A claim reserves the estimated cost of a stage; its completion settles the real cost. Their times in the
server are measured with 1,000 seats and 50 agents against one seat and one agent, on one server in turns. The
number of script calls that a worker makes for a stage is counted too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from redis import Redis

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measurement, Ratio, compute_percentile, print_progress
from benchmarks.scripts import QUEUE, State, prioritize_server, record_times
from gridq.config.settings import settings
from gridq.limits.quotas_file import AgentLimit, Limits, SeatLimit, TeamLimit
from gridq.protocol.models import Limit, Usage
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from workers.supervisor.embedded_server import EmbeddedServer

COST_MICRO_DOLLARS = 10_000
"""The estimated cost of a stage."""

USED = Usage(micro_dollars=9_000, tokens_in=300, tokens_out=100)
AMPLE_MICRO_DOLLARS = 10**15
"""The amount of every budget: all are checked, none runs out."""

WINDOWS = ("5h", "day", "week", "month")
WAITING_STAGES = 10
"""Stages of each agent that always wait."""

TURN_STAGES = 10
"""Stages of one side in a row, before the other side's turn."""

COUNTED_STAGES = 50
"""Stages over which commands are averaged."""

MAX_GROWTH = 1.2
MAX_CALLS = 2.0
"""Script calls of a worker for a stage: one claim and one completion."""


class BudgetedGrid(State):
    """A grid with live seats and waiting agents.

    With `budgets` > 0, each seat has that many budgets of its own, one for each window. The quotas then add
    one budget for each seat, agent and team, for the seats' owner, for the model family and for the whole
    grid.
    """

    def __init__(self, store: Redis, name: str, seats: int, agents: int, budgets: int) -> None:
        super().__init__(store, settings(), name)
        self.seats = [f"here.s{number}" for number in range(seats)]
        self.agents = [f"a{number}" for number in range(agents)]
        self._stages = 0
        for seat in self.seats:
            self.scripts.register(
                seat, "inc", host="here", concurrency=1, queues=[QUEUE], record_ttl_ms=3_600_000,
                limits=_make_limits(WINDOWS[:budgets]), requests_per_minute=100_000 if budgets else None,
                owner="ann", families={QUEUE: ["family"]},
            )  # fmt: skip
        if budgets:
            limits = Limits(
                {agent: AgentLimit("team", AMPLE_MICRO_DOLLARS, 10**8) for agent in self.agents},
                {"team": TeamLimit(AMPLE_MICRO_DOLLARS, 10**8)},
                {seat: SeatLimit(_make_limits(["month"]), 100_000) for seat in self.seats},
                digest="bench",
                owners={"ann": _make_limits(["month"])},
                families={"family": _make_limits(["month"])},
                grid=_make_limits(["month"]),
            )
            self.scripts.apply_limits(limits.digest, "{}", limits.to_fields())
        for agent in self.agents * WAITING_STAGES:
            self.admit([COST_MICRO_DOLLARS], agent)

    def run_turn(self, stages: int = TURN_STAGES) -> None:
        """Admit, claim and complete stages one after another, with the next agent and the next seat each
        time.
        """
        for _ in range(stages):
            seat = self._admit()
            self.complete(self.claim(seat), seat, claim_next=False, used=USED)
        # Workers would consume these wake-ups.
        self.store.unlink(*(self.keys.queue(f"seat:{seat}") for seat in self.seats))

    def count_commands(self, stages: int) -> dict[str, float]:
        """Return the mean number of server commands for a claim and a completion, over `stages` stages."""
        counts = {"claim": 0, "complete": 0}
        for _ in range(stages):
            seat = self._admit()
            before = self._read_command_count()
            claim = self.claim(seat)
            between = self._read_command_count()
            self.complete(claim, seat, claim_next=False, used=USED)
            counts["claim"] += between - before
            counts["complete"] += self._read_command_count() - between
        return {script: count / stages for script, count in counts.items()}

    def _admit(self) -> str:
        """Admit a stage of the next agent. Return the seat whose turn it is."""
        self.admit([COST_MICRO_DOLLARS], self.agents[self._stages % len(self.agents)])
        self._stages += 1
        return self.seats[self._stages % len(self.seats)]

    def _read_command_count(self) -> int:
        stats: Any = self.store.info("commandstats")
        ours = ("cmdstat_info", "cmdstat_evalsha", "cmdstat_eval")
        return sum(about["calls"] for name, about in stats.items() if name not in ours)


def _make_limits(windows: Sequence[str]) -> tuple[Limit, ...]:
    return tuple(Limit(resource="money", window=window, amount=AMPLE_MICRO_DOLLARS) for window in windows)


def run(
    *, seats: int = 1_000, agents: int = 50, budgets: int = len(WINDOWS), stages: int = 2_000, jobs: int = 50
) -> list[Measurement]:
    """Return the times of `stages` stages on each side, and a worker's script calls for `jobs` jobs."""
    found = compare_sides(seats=seats, agents=agents, budgets=budgets, stages=stages)
    calls = count_worker_calls(jobs)
    print_progress(", ".join(f"{name} {number}" for name, number in sorted(calls.items())))
    each = calls.total() / jobs
    return [*found, Figure("calls of scripts by a worker for a stage", each, "round trips", MAX_CALLS)]


def compare_sides(*, seats: int, agents: int, budgets: int, stages: int) -> list[Measurement]:
    """Return times and commands in the server, compared with one seat and one agent."""
    with (
        EmbeddedServer() as server,
        connect(server.url, name="bench") as store,
        prioritize_server(server.pid),
    ):
        few = BudgetedGrid(store, "few", 1, 1, budgets)
        many = BudgetedGrid(store, "many", seats, agents, budgets)
        free = BudgetedGrid(store, "free", 1, 1, 0)
        sides = (few, many, free)
        for side in sides:  # warm
            side.run_turn()
        with record_times(store, *(side.scripts for side in sides)) as times:
            for _ in range(stages // TURN_STAGES):
                for side in sides:
                    side.run_turn()
        commands = [side.count_commands(COUNTED_STAGES) for side in sides]
    found: list[Measurement] = []
    for what, script in (("reserve (claim)", "claim"), ("settle (complete)", "complete")):
        one, all_, none = (compute_percentile(each[script], 0.5) for each in times)
        print_progress(
            f"{what} on one seat without any budget or quota: {none:.0f} µs, {commands[2][script]:g} commands"
        )
        about, other = (
            f"{what}, {seats:,} seats and {agents} agents, {budgets} budgets a seat",
            "1 seat, 1 agent",
        )
        found += [
            Ratio(f"{about}, p50 in the server", all_, one, "µs", MAX_GROWTH, other=other),
            Ratio(
                f"{about}, commands in the server",
                commands[1][script],
                commands[0][script],
                "commands",
                MAX_GROWTH,
                other=other,
            ),
        ]
    return found


def count_worker_calls(jobs: int) -> Counter[str]:
    """Count the script calls of a one-slot worker that runs this many one-stage jobs, one by one.

    Two kinds of calls are left out: renewals, which depend on time only, and claims that find no stage,
    because under load a wake-up may be sent twice.
    """
    with BenchGrid(1, 1) as grid:
        grid.client.result(grid.submit_sleep(0), 30)  # warm
        with ScriptMonitor(grid.server.url, grid.config.prefix, f"gridq-{grid.names[0]}") as monitor:
            for _ in range(jobs):
                grid.client.result(grid.submit_sleep(0), 30)
    return Counter(
        call.script
        for call in monitor.calls
        if call.script not in ("", "renew") and (call.has_lease or call.script != "claim")
    )


@dataclass(slots=True)
class Call:
    """One command: the client's address, the script that it calls ("" for none), and whether it opened a
    lease.
    """

    at: str
    script: str
    has_lease: bool = False


class ScriptMonitor:
    """The script calls over connections named `name`, read from the server's MONITOR."""

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
        self._record_addresses()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._record_addresses()  # includes connections opened meanwhile
        self._store.exists(self._end)
        self._thread.join(10)
        self._monitor.__exit__(None, None, None)
        self._store.close()
        self.calls = [call for call in self.calls if call.at in self._addresses]

    def _record_addresses(self) -> None:
        clients: Any = self._store.client_list()
        self._addresses |= {client["addr"] for client in clients if client["name"] == self._name}

    def _listen(self) -> None:
        while True:
            entry = self._monitor.next_command()
            command = entry["command"]
            if entry["client_type"] == "lua":
                if command.startswith(self._opened):
                    self.calls[-1].has_lease = True
                continue
            if self._end in command:
                return
            words = command.split(" ", 2)
            at = f"{entry['client_address']}:{entry['client_port']}"
            script = self._names.get(words[1], "?") if words[0] == "EVALSHA" else ""
            self.calls.append(Call(at, script))
