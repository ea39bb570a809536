"""Which machines a grid under attack has, with which seats, and the limits it runs under."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workers.chaos.profile import RARE

LANES = 4
BUDGET = 1_000_000
"""Dollars a month of each bench seat: never used up, but counted."""
RICH = 1_000_000
"""Dollars a month of the agent `poor` while no fault takes its money."""

QUOTAS = """\
[agents."*"]
monthly_dollars = 1000000

[agents.poor]
monthly_dollars = {dollars}
"""


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
    `{dollars}` where the money of the agent `poor` stands.
    """

    machines: tuple[Machine, ...]
    profiles: tuple[str, ...]
    stages: tuple[str, ...] = ()
    stages_dir: Path | None = None
    quotas: str = QUOTAS
    env: Mapping[str, str] = field(default_factory=dict)


def witnessed(machines: int) -> Layout:
    """Machines with a bench seat and a local seat each, whose stages write to the witness's file. The first
    one's bench seat is one that some stages would rather have.
    """
    terms = f"lanes = {LANES}\nbudget = {BUDGET}\n[local]\nlanes = {LANES}\n"
    seats = {"bench": "bench", "local": "local"}
    slugs = [f'slugs = ["{RARE}"]\n', *[""] * (machines - 1)]
    made = (Machine(f"m{at + 1}", seats, f"[bench]\n{told}{terms}") for at, told in enumerate(slugs))
    return Layout(
        machines=tuple(made),
        profiles=("chaos",),
        stages=("workers.chaos.stages",),
    )
