"""Run the demo and print it: the start, the progress, the answer, and a table of where each stage ran."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gridq.cli.commands.validate import validate_graph
from gridq.cli.exit_codes import exit_on_job_error
from gridq.cli.output import make_console, make_table, print_answer
from gridq.cli.progress import show_lines, show_live, wait_with_progress
from gridq.client import BrokerClient
from gridq.config.settings import Settings, settings
from gridq.errors import GridError
from gridq.protocol.models import HistoryRow, Json
from gridq.telemetry.narration import enclosing_name
from workers.demo.grid import PROFILES, SEATS, check_model, open_demo_grid, select_engine

if TYPE_CHECKING:
    from rich.table import Table

JOB_TIMEOUT_SECONDS = 120.0
"""Time limit of the graph. The briefing needs about two seconds."""


def run_demo(graph: str, value: Json, *, engine: str | None, needs_model: bool, keep: bool) -> None:
    """Start a grid, run `graph` on it, print the result, stop the grid.

    ConfigError: there is no engine or no model, or a program does not start. GraphError: the graph is
    invalid. typer.Exit: the job failed.
    """
    began = time.monotonic()
    out = make_console(err=True)
    name, reason = select_engine(engine)
    if needs_model:
        check_model()
    needs = validate_graph(graph, settings().model_copy(update={"profiles": PROFILES}))
    out.print(
        f"Graph    {needs['stages']} stages in {needs['steps']} steps for {' and '.join(needs['queues'])}"
    )
    out.print(f"Engine   {reason}; choose another with --engine or GRIDQ_ENGINE")
    out.print(f"Starting a server, a router and workers for {' and '.join(SEATS)} ...")
    folder: Path | None = None
    try:
        with open_demo_grid(name, keep=keep) as (config, folder):
            out.print(f"Ready    after {time.monotonic() - began:.1f} s")
            _run(config, graph, value)
            out.print("Stopping ...")
    except KeyboardInterrupt:
        out.print("Stopped  by Ctrl-C; all programs have ended")
        raise
    except (GridError, typer.Exit):
        if folder is not None and folder.exists():
            out.print(f"Logs     {folder}", soft_wrap=True)
        raise
    if keep:
        out.print(f"Folder   {folder}", soft_wrap=True)
    out.print(f"Done     after {time.monotonic() - began:.1f} s; all programs have ended")


def _run(config: Settings, graph: str, value: Json) -> None:
    out = make_console(err=True)
    client = BrokerClient(config=config)
    try:
        job = client.submit(graph, value)
        with exit_on_job_error(), (show_live if out.is_terminal else show_lines)(client, job) as progress:
            answer = wait_with_progress(client, job, JOB_TIMEOUT_SECONDS, progress)
        rows = client.rows(job)
    finally:
        client.close()
    out.print()
    print_answer(answer)
    typer.echo()
    make_console().print(make_stages_table(rows))
    typer.echo()


def make_stages_table(rows: list[HistoryRow]) -> Table:
    """Return a table of the stages: where each ran, its times and its tokens."""
    table = make_table("stage", "queue", "worker", "wait ms", "run ms", "tokens", numbers=_NUMBERS, gap=1)
    for row in rows:
        place = enclosing_name(row.path)
        tokens = f"{row.tokens_in}+{row.tokens_out}" if row.tokens_in or row.tokens_out else ""
        again = f" (try {row.attempt})" if row.attempt > 1 else ""
        table.add_row(
            (f"{place}/{row.stage}" if place else row.stage) + again,
            row.queue,
            row.worker.partition("@")[0],
            f"{row.wait_ms:.0f}",
            f"{row.run_ms:.1f}",
            tokens,
        )
    return table


_NUMBERS = ("wait ms", "run ms", "tokens")
