"""How things are measured: alternating rounds, medians, and one printed line a ratio."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Ratio:
    """One comparison with its goal. `worst` is a second, weaker bound where the goal is an aim; `other` is
    what gridq is compared with.
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
    def verdict(self) -> str:
        if self._meets(self.goal):
            return "met"
        return "within the worst" if self.worst is not None and self._meets(self.worst) else "missed"

    def _meets(self, bound: float) -> bool:
        return self.ratio <= bound if self.at_most else self.ratio >= bound

    def line(self) -> str:
        """The line that is printed; it ends in the ratio."""
        return (
            f"{self.name}: gridq {self.ours:.4g} {self.unit}, {self.other} {self.theirs:.4g} {self.unit}, "
            f"goal {self.goal_text}, {self.verdict}: {self.ratio:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of gridq alone with the bound it must keep."""

    name: str
    value: float
    unit: str
    bound: float

    @property
    def goal_text(self) -> str:
        return f"≤ {self.bound:g} {self.unit}"

    @property
    def verdict(self) -> str:
        return "met" if self.value <= self.bound else "missed"

    def line(self) -> str:
        """The line that is printed; it ends in the share of the bound that is used."""
        share = self.value / self.bound if self.bound else float(self.value > 0)
        return (
            f"{self.name}: {self.value:.4g} {self.unit}, goal {self.goal_text}, {self.verdict}: {share:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A comparison of which only gridq's side could be measured, and why."""

    name: str
    ours: float
    unit: str
    goal_text: str
    reason: str

    @property
    def verdict(self) -> str:
        return f"not compared: {self.reason}"

    def line(self) -> str:
        """The line that is printed."""
        return f"{self.name}: gridq {self.ours:.4g} {self.unit}, goal {self.goal_text}, {self.verdict}"


Measured = Ratio | Figure | Unmeasured


def tell(text: str) -> None:
    """Say on stderr how far a long measurement is."""
    print(text, file=sys.stderr, flush=True)


def timed(act: Callable[[], object]) -> float:
    """Seconds that `act` takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def alternate(rounds: int, *sides: Callable[[], object]) -> list[float]:
    """The median seconds of each side. They take turns, and so does who begins: noise hits all of them."""
    times: list[list[float]] = [[] for _ in sides]
    for round_ in range(rounds):
        for turn in range(len(sides)):
            number = (round_ + turn) % len(sides)
            times[number].append(timed(sides[number]))
    return [median(each) for each in times]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
