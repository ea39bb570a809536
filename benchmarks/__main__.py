"""Run benchmarks and print one line for each figure.

Without arguments, the short groups run on one shared grid, and RESULTS.md is written anew. The other groups
take long and start their own processes. Each of them runs only if you name it, and replaces its own section
of RESULTS.md.
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
    crowds,
    fanin,
    forecast,
    gpu,
    http,
    huge_graphs,
    idle,
    large_bodies,
    memory,
    onestage,
    overload,
    programs,
    recovery,
    report,
    reservations,
    scripts,
    slots,
    soak,
    streams,
)
from benchmarks.measure import Measurement
from benchmarks.sides import Sides

SHARED_GROUPS = ("chain", "fanin", "onestage", "scripts", "memory", "backlog")
SEPARATE_GROUPS: dict[str, Callable[[], Sequence[Measurement]]] = {
    "recovery": recovery.run,
    "criteria": criteria.run,
    "overload": overload.run,
    "forecast": forecast.run,
    "http": http.run,
    "streams": streams.run,
    "programs": programs.run,
    "idle": idle.run,
    "slots": slots.run,
    "reservations": reservations.run,
    "gpu": gpu.run,
    "soak": soak.run,
    "huge_graphs": huge_graphs.run,
    "crowds": crowds.run,
    "large_bodies": large_bodies.run,
}


def main(arguments: Sequence[str]) -> int:
    """Run the groups in `arguments`, or all short ones. Return 1 if a figure misses its goal, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="group",
        help=f"short: {', '.join(SHARED_GROUPS)} (default: all of these); long: {', '.join(SEPARATE_GROUPS)}",
    )
    requested = parser.parse_args(arguments).groups
    unknown = sorted(set(requested) - {*SHARED_GROUPS, *SEPARATE_GROUPS})
    if unknown:
        parser.error(
            f"unknown group {unknown[0]!r}; choose from {', '.join([*SHARED_GROUPS, *SEPARATE_GROUPS])}"
        )
    found: dict[str, Sequence[Measurement]] = {}
    for group in (group for group in requested if group in SEPARATE_GROUPS):
        load = os.getloadavg()[0]
        found[group] = SEPARATE_GROUPS[group]()
        _print_rows(found[group])
        report.PAGE.write_text(
            report.replace_group(report.PAGE.read_text(encoding="utf-8"), group, found[group], load),
            encoding="utf-8",
        )
    together = [group for group in requested or SHARED_GROUPS if group in SHARED_GROUPS]
    if together:
        found |= _run_shared_groups(together, whole=not requested)
    return int(any(each.outcome == "missed" for group in found.values() for each in group))


def _run_shared_groups(groups: Sequence[str], *, whole: bool) -> dict[str, Sequence[Measurement]]:
    """Run groups that share one grid. `whole`: also write the page."""
    began, load = time.monotonic(), os.getloadavg()[0]
    found: dict[str, Sequence[Measurement]] = {}
    table: scripts.Table | None = None
    with Sides() as sides:
        server = sides.server_version
        for group in groups:
            if group == "scripts":
                table, found[group] = scripts.run(sides)
            else:
                found[group] = SHARED_RUNNERS[group](sides)
            _print_rows(found[group])
    if table is not None:
        print("\n".join(table.to_markdown()))
    if whole:
        page = report.render_page(found, table, server, time.monotonic() - began, load)
        separate = report.extract_separate_groups(report.PAGE.read_text(encoding="utf-8"))
        report.PAGE.write_text(page + separate, encoding="utf-8")
    return found


SHARED_RUNNERS: dict[str, Callable[[Sides], Sequence[Measurement]]] = {
    "chain": chain.run,
    "fanin": fanin.run,
    "onestage": onestage.run,
    "memory": memory.run,
    "backlog": backlog.run,
}


def _print_rows(measured: Sequence[Measurement]) -> None:
    for each in measured:
        print(each.to_line(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
