"""Measure in alternating rounds, and compare the results with their goals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Ratio:
    """A comparison of gridq (`ours`) with `other` (`theirs`), and its goal.

    `worst` is a second, weaker bound: a ratio between both is acceptable.
    """

    name: str
    ours: float
    theirs: float
    unit: str
    goal: float
    at_most: bool = True
    worst: float | None = None
    other: str = "bare Celery"

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def goal_text(self) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self.goal:g}" + (f", at worst {self.worst:g}" if self.worst is not None else "")

    @property
    def outcome(self) -> str:
        if self._meets(self.goal):
            return "met"
        return "within the worst" if self.worst is not None and self._meets(self.worst) else "missed"

    def _meets(self, bound: float) -> bool:
        return self.ratio <= bound if self.at_most else self.ratio >= bound

    def to_line(self) -> str:
        """Return one line of text, which ends with the ratio."""
        return (
            f"{self.name}: gridq {self.ours:.4g} {self.unit}, {self.other} {self.theirs:.4g} {self.unit}, "
            f"goal {self.goal_text}, {self.outcome}: {self.ratio:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of gridq alone, and its upper bound."""

    name: str
    value: float
    unit: str
    bound: float

    @property
    def goal_text(self) -> str:
        return f"≤ {self.bound:g} {self.unit}"

    @property
    def outcome(self) -> str:
        return "met" if self.value <= self.bound else "missed"

    def to_line(self) -> str:
        """Return one line of text, which ends with the used share of the bound."""
        share = self.value / self.bound if self.bound else float(self.value > 0)
        return (
            f"{self.name}: {self.value:.4g} {self.unit}, goal {self.goal_text}, {self.outcome}: {share:.2f}"
        )


@dataclass(frozen=True, slots=True)
class MissingComparison:
    """A comparison whose other side could not be measured, and the reason."""

    name: str
    ours: float
    unit: str
    goal_text: str
    reason: str

    @property
    def outcome(self) -> str:
        return f"not compared: {self.reason}"

    def to_line(self) -> str:
        """Return one line of text."""
        return f"{self.name}: gridq {self.ours:.4g} {self.unit}, goal {self.goal_text}, {self.outcome}"


Measurement = Ratio | Figure | MissingComparison


def print_progress(text: str) -> None:
    """Print the progress of a long measurement to stderr."""
    print(text, file=sys.stderr, flush=True)


def measure_seconds(act: Callable[[], object]) -> float:
    """Return the seconds that `act` takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def alternate(rounds: int, *sides: Callable[[], object]) -> list[float]:
    """Return the median seconds of each side. The sides take turns, also at being first, so noise affects
    all.
    """
    times: list[list[float]] = [[] for _ in sides]
    for round_ in range(rounds):
        for turn in range(len(sides)):
            number = (round_ + turn) % len(sides)
            times[number].append(measure_seconds(sides[number]))
    return [median(each) for each in times]


def compute_percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of `values` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
