"""A chaos run as it is seen: its faults, the table at the end, and the same as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gridq.cli.commands.audit import print_checks as show_checks
from gridq.cli.commands.audit import to_json as checks_as_json
from gridq.cli.output import make_console, make_table
from tests.chaos.judge import STANDINGS

if TYPE_CHECKING:
    from rich.table import Table

    from tests.chaos.run import Result


def percentile(sorted_values: list[float], share: float) -> float | None:
    """The value that `share` (0 to 1) of the others do not exceed; None where there is none."""
    return (
        sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)] if sorted_values else None
    )


def figures(result: Result) -> list[tuple[str, str]]:
    """The table's lines: what, how much."""
    verdict, plan = result.verdict, result.plan
    return [
        ("seed", str(plan.seed)),
        ("time", f"{result.seconds:.0f} s"),
        ("jobs", f"{len(plan.jobs)}: " + _sums(verdict.states)),
        ("errors", _sums(verdict.codes)),
        ("stages planned", str(plan.stages)),
        ("stages recorded", f"{verdict.recorded}, pure ones too"),
        ("runs seen", str(verdict.runs)),
        ("extra runs", str(verdict.extra)),
        ("attempts without a result", f"{verdict.nothing}, of them lost with their worker {result.losses}"),
        ("limits", f"{len(verdict.uses)}, of them used up {sum(use.reached for use in verdict.uses)}; "
                   f"{sum(use.windows > 1 for use in verdict.uses)} turned"),
        ("faults", f"{result.faults.total()}: " + _sums(result.faults)),
        ("programs killed", str(result.deaths)),
        ("programs ended by themselves", str(len(result.ended_alone))),
        *((f"from kill to re-claim, p50 / p99: {name}", _times(result.recovery[name])) for name in STANDINGS),
    ]  # fmt: skip


def _times(seconds: list[float]) -> str:
    shown = [percentile(seconds, share) for share in (0.5, 0.99)]
    return " / ".join("-" if time is None else f"{time:.1f} s" for time in shown) + f", {len(seconds)} times"


def _sums(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def table(result: Result) -> Table:
    """The figures as a table."""
    found = make_table("what", "how much")
    for name, text in figures(result):
        found.add_row(name, text)
    return found


def show(result: Result) -> None:
    """Print the table and every rule with what breaks it."""
    make_console().print(table(result))
    typer.echo("")
    show_checks(result.checks)


def as_json(result: Result) -> dict[str, Any]:
    """The whole result for programs."""
    verdict, plan = result.verdict, result.plan
    return {
        "seed": plan.seed,
        "seconds": round(result.seconds, 1),
        "jobs": dict(verdict.states),
        "errors": dict(verdict.codes),
        "stages": plan.stages,
        "recorded": verdict.recorded,
        "runs": verdict.runs,
        "extra_runs": verdict.extra,
        "attempts_without_result": verdict.nothing,
        "losses": result.losses,
        "limits": [use.to_json() for use in verdict.uses],
        "faults": dict(result.faults),
        "killed": result.deaths,
        "ended_alone": result.ended_alone,
        "recovery_seconds": {
            name: {"count": len(times), "p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
            for name, times in result.recovery.items()
        },
        "checks": checks_as_json(result.checks),
        "logs": None if result.folder is None else str(result.folder),
    }
