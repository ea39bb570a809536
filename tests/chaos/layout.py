"""Which machines a grid under attack has, with which seats, and the limits it runs under."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.bounds import Bound, own_lines, quotas_of
from tests.chaos.plan import POORER, Plan
from tests.chaos.profile import MOST, PROFILE, RARE
from tests.chaos.witness import tokens

CONCURRENCY = 4
BUDGET = 1_000_000
"""Dollars a month of each bench seat: never used up, but counted."""
RICH = 1_000_000
"""Dollars a month of the agent `poor` while no fault takes its money."""
OWNER = "alice"
"""Whose the first machine's seat is."""
TEAM = "research"
LEAST = 10
"""Stages that the smallest budget of money or tokens lets in at once."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: `seats` are its seats' names → their sort (those of a sort can stand in for each other),
    `terms` the text of its seats.toml.
    """

    name: str
    seats: Mapping[str, str]
    terms: str


@dataclass(frozen=True, slots=True)
class Layout:
    """All machines, and what all programs are told: `profiles`, `stages` and `stages_dir` as the settings of
    these names, `env` what else stands in their environment. `quotas` is the text of the quotas file, with
    `{dollars}` where the money of the agent `poor` stands; it and the machines' files state `bounds`.
    `owners`: of seats, by their ids. `midnight`: seconds after the grid has started at which a day begins;
    None: those of UTC. `stays`: seats that are never gone for good.
    """

    machines: tuple[Machine, ...]
    profiles: tuple[str, ...]
    stages: tuple[str, ...] = ()
    stages_dir: Path | None = None
    quotas: str = quotas_of((), {})
    env: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    midnight: float | None = None
    stays: frozenset[str] = frozenset()


def witnessed(machines: int, plan: Plan) -> Layout:
    """Machines with a bench seat and a local seat each, whose stages write to the witness's file, under
    limits that bind what the plan asks of them. The first one's bench seat is one that some stages would
    rather have; the last one's has twice the slots, and does what budgets keep from the others.
    """
    limits = bounds(machines, plan)
    seats = {"bench": "bench", "local": "local"}
    made = []
    for at in range(1, machines + 1):
        lines = [f"budget = {BUDGET}", own_lines(f"m{at}.bench", limits)]
        lines += [f'slugs = ["{RARE}"]', f'owner = "{OWNER}"'] if at == 1 else []
        concurrency = CONCURRENCY if at < machines else 2 * CONCURRENCY
        text = "\n".join(
            ["[bench]", f"concurrency = {concurrency}", *lines, "[local]", f"concurrency = {CONCURRENCY}", ""]
        )
        made.append(Machine(f"m{at}", seats, text))
    return Layout(
        machines=tuple(made),
        profiles=(PROFILE,),
        stages=("tests.chaos.stages",),
        quotas=quotas_of(limits, dict.fromkeys(POORER, TEAM)),
        bounds=limits,
        owners={"m1.bench": OWNER},
        midnight=plan.seconds / 2,
        stays=frozenset({f"m{machines}.bench"}),
    )


def bounds(machines: int, plan: Plan) -> tuple[Bound, ...]:
    """Limits for a plan: parts of all that its stages are to use, and of that in a minute. In a minute all
    machines together, and the last one alone, have room for more than is used; in longer windows the last one
    has, so that all ends.
    """
    spends = plan.spends
    minute = min(1.0, 60 / plan.seconds)  # of the plan, which is as even over its time
    # Of what is asked two thirds are used: jobs fail, are cancelled and refused. Who is done within a minute
    # is not to wait for the next.
    used = minute * (0.85 if plan.seconds > 60 else 1.3)

    def money(part: float) -> int:
        return max(round(sum(spends) * part), LEAST * MOST)

    def words(part: float) -> int:
        return max(round(sum(sum(tokens(spend)) for spend in spends) * part), LEAST * sum(tokens(MOST)))

    def requests(part: float) -> int:
        return max(round(len(spends) * part), LEAST)

    last = f"seat m{machines}.bench"
    limits = [
        Bound("grid", "dollars", money(used), "1m"),
        Bound("grid", "requests", requests(2), "day"),
        Bound(last, "dollars", money(0.9 * used), "1m", own=False),
        Bound(last, "tokens", words(3), "5h"),
        Bound("agent thrifty", "dollars", money(0.02), "month", key="monthly_dollars"),
        Bound("agent thrifty", "dollars", money(0.012), "day"),
        Bound("agent thrifty", "tokens", words(0.1), "week"),
        Bound(f"team {TEAM}", "dollars", money(0.015), "day"),
        Bound(f"team {TEAM}", "tokens", words(0.02), "day"),
        Bound("agent cat", "jobs", max(len(plan.jobs) // 60, 1), "month", key="monthly_jobs"),
        Bound("agent cat", "jobs", max(len(plan.jobs) // 100, 1), "day"),
    ]
    if machines > 1:
        limits += [
            Bound("seat m1.bench", "dollars", money(0.22 * minute), "1m"),
            Bound("seat m1.bench", "requests", requests(0.16), "5h"),
            Bound("seat m1.bench", "tokens", words(0.08), "day", own=False),
            Bound(f"owner {OWNER}", "dollars", money(0.25 * minute), "1m"),
        ]
    for at in range(2, machines):
        seat = f"seat m{at}.bench"
        limits += [
            Bound(seat, "requests", requests(0.2 * minute), "minute", own=False, key="requests_per_minute"),
            Bound(seat, "tokens", words(0.25 * minute), "1m", own=False, key="tokens_per_minute"),
            Bound(seat, "dollars", money(0.08), "day"),
        ]
    return tuple(limits)
