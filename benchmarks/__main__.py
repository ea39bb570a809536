"""`python -m benchmarks [group …]`: measure, print a line a figure; a whole run writes RESULTS.md.

The groups of APART take long, have processes of their own to kill, and run only where they are named: each
writes its own part of RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks import (
    backlog,
    chain,
    criteria,
    fanin,
    forecast,
    holds,
    http,
    idle,
    memory,
    onestage,
    overload,
    programs,
    recovery,
    report,
    scripts,
    slots,
    soak,
)
from benchmarks.measure import Measured
from benchmarks.sides import Sides

GROUPS = ("chain", "fanin", "onestage", "scripts", "memory", "backlog")
APART: dict[str, Callable[[], Sequence[Measured]]] = {
    "recovery": recovery.run,
    "criteria": criteria.run,
    "overload": overload.run,
    "forecast": forecast.run,
    "http": http.run,
    "programs": programs.run,
    "idle": idle.run,
    "slots": slots.run,
    "holds": holds.run,
    "soak": soak.run,
}


def main(arguments: Sequence[str]) -> int:
    """Measure the groups asked for, all where none is; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="group",
        help=f"one of {', '.join(GROUPS)}, which all run where none is named; or of {', '.join(APART)}",
    )
    asked = parser.parse_args(arguments).groups
    unknown = sorted(set(asked) - {*GROUPS, *APART})
    if unknown:
        parser.error(f"no group {unknown[0]!r}; there are {', '.join([*GROUPS, *APART])}")
    found: dict[str, Sequence[Measured]] = {}
    for group in (group for group in asked if group in APART):
        load = os.getloadavg()[0]
        found[group] = APART[group]()
        _print(found[group])
        report.PAGE.write_text(
            report.with_apart(report.PAGE.read_text(encoding="utf-8"), group, found[group], load),
            encoding="utf-8",
        )
    together = [group for group in asked or GROUPS if group in GROUPS]
    if together:
        found |= _together(together, whole=not asked)
    return int(any(each.verdict == "missed" for group in found.values() for each in group))


def _together(groups: Sequence[str], *, whole: bool) -> dict[str, Sequence[Measured]]:
    """Measure groups that share one grid; a whole run writes the page."""
    began, load = time.monotonic(), os.getloadavg()[0]
    found: dict[str, Sequence[Measured]] = {}
    table: scripts.Table | None = None
    with Sides() as sides:
        server = sides.server_version
        for group in groups:
            if group == "scripts":
                table, found[group] = scripts.run(sides)
            else:
                found[group] = TOGETHER[group](sides)
            _print(found[group])
    if table is not None:
        print("\n".join(table.lines()))
    if whole:
        page = report.page(found, table, server, time.monotonic() - began, load)
        apart = report.apart(report.PAGE.read_text(encoding="utf-8"))
        report.PAGE.write_text(page + apart, encoding="utf-8")
    return found


TOGETHER: dict[str, Callable[[Sides], Sequence[Measured]]] = {
    "chain": chain.run,
    "fanin": fanin.run,
    "onestage": onestage.run,
    "memory": memory.run,
    "backlog": backlog.run,
}


def _print(measured: Sequence[Measured]) -> None:
    for each in measured:
        print(each.line(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
