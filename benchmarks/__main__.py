"""`python -m benchmarks [group …]`: measure, print a line a figure; a whole run writes RESULTS.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from benchmarks import chain, fanin, memory, onestage, report, scripts
from benchmarks.measure import Measured
from benchmarks.sides import Sides

GROUPS = ("chain", "fanin", "onestage", "scripts", "memory")


def main(arguments: Sequence[str]) -> int:
    """Measure the groups asked for, all where none is; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="group", help="one of " + ", ".join(GROUPS) + "; default: all"
    )
    asked = parser.parse_args(arguments).groups
    unknown = sorted(set(asked) - set(GROUPS))
    if unknown:
        parser.error(f"no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    began, load = time.monotonic(), os.getloadavg()[0]
    found: dict[str, Sequence[Measured]] = {}
    table: scripts.Table | None = None
    with Sides() as sides:
        server = sides.server_version
        for group in asked or GROUPS:
            if group == "scripts":
                table, found[group] = scripts.run(sides)
            else:
                found[group] = {"chain": chain, "fanin": fanin, "onestage": onestage, "memory": memory}[
                    group
                ].run(sides)
            for each in found[group]:
                print(each.line(), flush=True)
    if table is not None:
        print("\n".join(table.lines()))
    if not asked:
        report.PAGE.write_text(
            report.page(found, table, server, time.monotonic() - began, load), encoding="utf-8"
        )
    return int(any(each.verdict == "missed" for group in found.values() for each in group))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
