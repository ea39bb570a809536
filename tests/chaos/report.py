"""The report of a chaos run: a table, the broken rules, and both as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gridq.cli.commands.audit import print_checks as show_checks
from gridq.cli.commands.audit import to_json as checks_as_json
from gridq.cli.output import make_console, make_table
from tests.chaos.auditing import WAIT_CLASSES
from tests.chaos.script_times import LOGGED_SECONDS, TARGET_SECONDS, SlowCall

if TYPE_CHECKING:
    from rich.table import Table

    from tests.chaos.run import Result


def percentile(sorted_values: list[float], share: float) -> float | None:
    """Return the value that `share` (0 to 1) of the values do not exceed; None: there are no values."""
    return (
        sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)] if sorted_values else None
    )


def list_figures(result: Result) -> list[tuple[str, str]]:
    """Return the lines of the table: name, value."""
    audit, plan, endpoints = result.audit_result, result.plan, result.endpoints
    reached = sum(use.reached for use in audit.uses)
    turned = sum(use.windows > 1 for use in audit.uses)
    return [
        ("seed", str(plan.seed)),
        ("time", f"{result.seconds:.0f} s"),
        ("jobs", f"{len(plan.jobs)}: " + _format_counts(audit.states)),
        ("errors", _format_counts(audit.codes)),
        ("stages planned", str(plan.stages)),
        ("stages recorded", f"{audit.recorded}, pure ones included"),
        ("runs seen", str(audit.runs)),
        ("extra runs", str(audit.extra_runs)),
        ("unrecorded attempts", f"{audit.unrecorded}, of them lost with their worker {result.losses}"),
        ("requests", f"{endpoints.answered} answered; " + _format_counts(endpoints.failed)),
        ("model calls", _format_counts(endpoints.calls)),
        ("calls billed", f"{endpoints.billed}, not known to the grid {endpoints.unknown}"),
        ("longest server call", _format_slow(result.slow_calls)),
        ("limits", f"{len(audit.uses)}, of them used up {reached}; {turned} with several windows"),
        ("faults", f"{result.faults.total()}: " + _format_counts(result.faults)),
        ("programs killed", str(result.deaths)),
        ("unexpected ends", str(len(result.unexpected_ends))),
        *(
            (f"kill to next run, p50 / p99: {name}", _format_times(result.recovery[name]))
            for name in WAIT_CLASSES
        ),
    ]


def _format_times(seconds: list[float]) -> str:
    shown = [percentile(seconds, share) for share in (0.5, 0.99)]
    return " / ".join("-" if time is None else f"{time:.1f} s" for time in shown) + f", {len(seconds)} times"


def _format_slow(calls: list[SlowCall]) -> str:
    over = sum(call.seconds > TARGET_SECONDS for call in calls)
    longest = (
        f"{calls[0].name} {calls[0].seconds * 1000:.0f} ms"
        if calls
        else f"below {LOGGED_SECONDS * 1000:g} ms"
    )
    return f"{longest}; over {TARGET_SECONDS * 1000:g} ms: {over}"


def _format_counts(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def make_figures_table(result: Result) -> Table:
    """Return the figures as a table."""
    found = make_table("what", "how much")
    for name, text in list_figures(result):
        found.add_row(name, text)
    return found


def print_result(result: Result) -> None:
    """Print the table, and every rule with its breaches."""
    make_console().print(make_figures_table(result))
    typer.echo("")
    show_checks(result.checks)


def to_json(result: Result) -> dict[str, Any]:
    """Return the whole result as JSON."""
    audit_result, plan = result.audit_result, result.plan
    return {
        "seed": plan.seed,
        "seconds": round(result.seconds, 1),
        "jobs": dict(audit_result.states),
        "errors": dict(audit_result.codes),
        "stages": plan.stages,
        "recorded": audit_result.recorded,
        "runs": audit_result.runs,
        "extra_runs": audit_result.extra_runs,
        "attempts_without_result": audit_result.unrecorded,
        "losses": result.losses,
        "requests": {"answered": result.endpoints.answered, "failed": dict(result.endpoints.failed)},
        "model_calls": dict(result.endpoints.calls),
        "calls_billed": result.endpoints.billed,
        "calls_unknown": result.endpoints.unknown,
        "slow_server_calls": [
            {"name": call.name, "ms": round(call.seconds * 1000, 1)} for call in result.slow_calls[:20]
        ],
        "limits": [use.to_json() for use in audit_result.uses],
        "faults": dict(result.faults),
        "killed": result.deaths,
        "unexpected_ends": result.unexpected_ends,
        "recovery_seconds": {
            name: {"count": len(times), "p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
            for name, times in result.recovery.items()
        },
        "checks": checks_as_json(result.checks),
        "logs": None if result.folder is None else str(result.folder),
    }
