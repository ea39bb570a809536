"""Define the three machines of the three-machines test: their seats, prices and limits.

Each limit is written once, as a `Bound`. It gives the lines in a machine's seats.toml or in the quotas file,
and the rule that the ledger is checked against.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gridq.limits.ledger import Entry
from gridq.protocol.models import Json
from tests.acceptance import paid_cli
from tests.acceptance.vendors import Price
from tests.chaos import limits as chaos_limits
from tests.chaos.layout import Layout, Machine
from tests.chaos.limits import Bound, Use, format_quotas_file, format_seat_limits
from tests.fakes.vendor_apis import ProtocolModel

STAGE_CENTS = 0.09
"""The declared cost of a stage. No call costs more, so each reservation covers its call."""
MIN_BUDGET_MICRO_DOLLARS = 6000
"""The smallest budget in micro-dollars: it admits a few calls, each with a reservation above its cost."""
MAX_TOKENS = 600
"""The declared limit on the tokens of an answer: more than any call has, prompt included."""


def stage(name: str, *effects: dict[str, Json]) -> dict[str, Json]:
    """Return the spec of a stage that calls a model of the family in its node's config."""
    return {
        "name": name,
        "description": "Ask a model.",
        "input": {"kind": "Any"},
        "output": {"kind": "Text"},
        "effects": [
            {"effect": "Llm", "model": {"$config": "model", "default": "any"}},
            {"effect": "Fallible"},
            *effects,
        ],
        "implementation": "llm:complete",
    }


DECLARED, ESTIMATED = "ask", "ask_freely"
STAGES = (stage(DECLARED, {"effect": "Cost", "cents": STAGE_CENTS}), stage(ESTIMATED))
"""One stage declares its cost; the cost of the other is estimated."""


@dataclass(frozen=True)
class Seat:
    """One seat. `price` is None for a subscription. `families` are the model families that it serves."""

    machine: str
    name: str
    api: ProtocolModel
    families: tuple[str, ...]
    price: Price | None
    concurrency: int = 1
    owner: str = ""

    @property
    def id(self) -> str:
        return f"{self.machine}.{self.name}"

    @property
    def cli(self) -> bool:
        return self.api in ("claude", "codex")


SEATS = (
    Seat("m1", "openai", "openai", ("fast",), Price("0.5", "2", cached="0.05"), concurrency=4, owner="alice"),
    Seat("m1", "claude", "claude", ("deep",), None),
    Seat("m2", "anthropic", "anthropic", ("fast", "deep"),
         Price("0.8", "3", cached="0.08", written="1"), concurrency=10),
    Seat("m2", "codex", "codex", ("deep", "rare"), Price("1.25", "2", cached="0.125")),
    Seat("m3", "google", "google", ("fast",), Price("0.3", "2.5", cached="0.075", reasoning="3.5"),
         concurrency=4),
    Seat("m3", "work", "claude", ("deep", "rare"), Price("0.7", "2.75", cached="0.07", written="0.9"),
         owner="alice"),
)  # fmt: skip
FAMILIES: dict[tuple[str, ...], int] = {("fast",): 86, ("deep",): 7, ("rare", "fast"): 7}
"""The weight of each choice of families; of two, the first with a seat applies. Program seats get few calls,
because each call starts a process.
"""

AGENTS = {"cat": "research", "thrifty": "research"}
"""Agents with small budgets, and their team."""


def bounds(stages: int) -> tuple[Bound, ...]:
    """Return the limits for a run of this many stages.

    Some limit is reached on each seat but the largest one, and for each agent with a small budget.
    """

    def least(micro: int) -> int:
        return max(micro, MIN_BUDGET_MICRO_DOLLARS)

    return (
        Bound("seat m1.openai", "dollars", least(stages * 32), "day", key="budget"),
        Bound("seat m1.openai", "requests", max(stages // 5, 20), "5h"),
        Bound("seat m1.claude", "tokens", max(stages * 4, 4000), "week"),
        Bound("seat m1.claude", "requests", 20, "minute", own=False, key="requests_per_minute"),
        Bound("seat m2.anthropic", "dollars", stages * 1000, "month"),
        Bound("seat m2.codex", "dollars", least(stages * 3), "week", own=False, key="budget_dollars"),
        Bound("seat m2.codex", "requests", max(stages // 100, 5), "day", own=False),
        Bound("seat m3.google", "dollars", least(stages * 36), "month", own=False),
        Bound("seat m3.google", "requests", max(20, stages // 30), "minute", key="requests_per_minute"),
        Bound("seat m3.google", "tokens", max(20_000, stages * 10), "1m", key="tokens_per_minute"),
        Bound("seat m3.work", "dollars", least(stages * 3), "month", share=0.5),
        Bound("owner alice", "dollars", least(stages * 33), "day"),
        Bound("owner alice", "tokens", stages * 300, "5h"),
        Bound("family deep", "requests", stages * 2, "week"),
        Bound("family fast", "tokens", stages * 1000, "day"),
        Bound("grid", "dollars", stages * 1000, "day"),
        Bound("grid", "tokens", stages * 1000, "5h"),
        Bound(
            "agent thrifty",
            "dollars",
            max(stages * 12, 8 * MIN_BUDGET_MICRO_DOLLARS),
            "month",
            key="monthly_dollars",
        ),
        Bound("agent thrifty", "tokens", max(stages * 20, 20 * MAX_TOKENS), "week"),
        Bound(
            "team research",
            "dollars",
            max(stages * 30, 12 * MIN_BUDGET_MICRO_DOLLARS),
            "month",
            key="monthly_dollars",
        ),
        Bound("team research", "dollars", max(stages * 28, 12 * MIN_BUDGET_MICRO_DOLLARS), "day"),
        Bound("agent cat", "jobs", max(3, stages // 250), "month", key="monthly_jobs"),
        Bound("agent cat", "jobs", max(3, stages // 260), "week"),
    )


def layout(folder: Path, url: str, limits: Iterable[Bound]) -> Layout:
    """Return the machines. Their vendors answer at `url`."""
    limits = tuple(limits)
    (folder / "stages").mkdir()
    for spec in STAGES:
        (folder / "stages" / f"{spec['name']}.json").write_text(json.dumps(spec))
    (folder / "key").write_text("sk-test-0123456789")
    names = dict.fromkeys(seat.machine for seat in SEATS)
    machines = [
        Machine(
            name,
            {seat.name: "login" if seat.cli else "key" for seat in SEATS if seat.machine == name},
            "\n".join(_table(seat, folder, url, limits) for seat in SEATS if seat.machine == name),
        )
        for name in names
    ]
    return Layout(
        machines=tuple(machines),
        profiles=("llm",),
        stages_dir=folder / "stages",
        quotas=format_quotas_file(limits, AGENTS),
        env={"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")},
    )


_PATHS = {"openai": "/v1", "anthropic": "/v1", "google": "/v1beta"}


def _table(seat: Seat, folder: Path, url: str, limits: tuple[Bound, ...]) -> str:
    lines = [f'[[llm]]\nname = "{seat.name}"\nconcurrency = {seat.concurrency}']
    if seat.cli:
        program = paid_cli.install(folder / seat.id, seat.api, seat.id, url)
        home = folder / seat.id / "login"
        home.mkdir()
        lines.append(f'cli = "{seat.api}"\nprogram = "{program}"\nhome = "{home}"')
    else:
        lines.append(f'url = "{url}/{seat.id}{_PATHS[seat.api]}"\napi = "{seat.api}"')
        lines.append(f'key_file = "{folder / "key"}"\nallow_loopback = true')
    lines.append(f'billing = "{"metered" if seat.price else "subscription"}"')
    lines += [f'owner = "{seat.owner}"'] if seat.owner else []
    lines.append(format_seat_limits(seat.id, limits))
    families = ", ".join(f'"{name}"' for name in seat.families)
    model = f'name = "{seat.name}-1", families = [{families}]'
    prices = {
        "price_in": seat.price and seat.price.tokens_in,
        "price_out": seat.price and seat.price.tokens_out,
        "price_cached": seat.price and seat.price.cached,
        "price_cache_write": seat.price and seat.price.written,
        "price_reasoning": seat.price and seat.price.reasoning,
    }
    model += "".join(f", {name} = {price}" for name, price in prices.items() if price)
    return "\n".join([*lines, f"models = [{{{model}}}]"]) + "\n"


def compute_uses(limits: Iterable[Bound], entries: list[Entry]) -> list[Use]:
    """Return the usage of each bound, computed from the ledger's entries alone."""
    owners = {seat.id: seat.owner for seat in SEATS}
    return chaos_limits.compute_uses(limits, entries, owners, {seat.id: seat.families for seat in SEATS})
