"""Submit a graph, show its progress and print its answer: `gridq run`."""

from __future__ import annotations

import re
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import (
    EPILOG,
    INTERRUPTED,
    DebugOption,
    JsonOption,
    exit_on_job_error,
    print_json_error,
)
from gridq.cli.grid import GridOption, load_settings, open_client
from gridq.cli.inputs import (
    STDIN,
    GraphArgument,
    StagesOption,
    apply_stages_option,
    locate_graph_errors,
    parse_seconds,
    read_graph,
    read_input,
)
from gridq.cli.output import format_count, print_answer, print_json
from gridq.errors import ConfigError, GridError

if TYPE_CHECKING:
    from gridq.cli.progress import Refresh
    from gridq.client import BaseClient
    from gridq.protocol.models import Json

app = typer.Typer()

MAX_QUEUE_TIMEOUT_SECONDS = 7 * 86_400.0


@app.command(epilog=EPILOG, short_help="Run a graph and print its answer.")
def run(
    graph: GraphArgument,
    *,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="JSON|@FILE|-",
            help="Input of the graph. Default: null.",
            show_default=False,
        ),
    ] = None,
    stages: StagesOption = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="S",
            min=0,
            help="Seconds to wait for the answer. The job goes on after that.",
            show_default=False,
        ),
    ] = None,
    wait_for_seat: Annotated[
        bool,
        typer.Option("--wait-for-seat", help="Accept the job even if no live seat serves what it needs."),
    ] = False,
    queue_timeout: Annotated[
        str | None,
        typer.Option(
            "--queue-timeout",
            metavar="TIME",
            help="Let the job expire if a stage waits in a queue for longer: 90, 30m, 1h.",
            show_default=False,
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Do not run the same graph and input again under the same key, while the result is kept.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show progress on stderr even if it is not a terminal.")
    ] = False,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a graph and print its answer: text as it is, anything else as JSON.

    On a terminal you see the progress. Ctrl-C cancels the job. If the job waits for a long time, a line on
    stderr says why. The job is named after the graph's file.
    """
    if graph == STDIN and input == STDIN:
        raise ConfigError(
            "Graph and input cannot both come from stdin",
            {"path": "--input", "fix": "put one of them in a file"},
        )
    seconds = (
        None
        if queue_timeout is None
        else parse_seconds(queue_timeout, "--queue-timeout", 0.001, MAX_QUEUE_TIMEOUT_SECONDS)
    )
    text = read_graph(graph)
    value = read_input(input)
    config = apply_stages_option(load_settings(grid), stages)
    if stages is not None and config.url is not None:
        raise ConfigError(
            "A gateway knows only its own stages",
            {"path": "--stages", "fix": "leave out --stages, or use the Redis server: --grid redis://…"},
        )
    with open_client(config) as client:
        with locate_graph_errors(graph):
            job = client.submit(
                text,
                value,
                wait_for_seat=wait_for_seat,
                queue_timeout=seconds,
                idempotency_key=idempotency_key,
                **_derive_name(graph),
            )
        _wait_and_print(client, job, timeout, watch, json)


def _wait_and_print(client: BaseClient, job: str, timeout: float | None, watch: bool, json: bool) -> None:
    """Wait for the job and print its answer or its error."""
    from gridq.cli.progress import LINES_INTERVAL_SECONDS, LIVE_INTERVAL_SECONDS, wait_with_progress

    def report(exc: GridError) -> None:
        if json:
            state = str(client.status(job))
            print_json_error(exc, job=job, state=state, rows=_dump_rows(client, job))

    started = time.monotonic()
    terminal = sys.stderr.isatty()
    interval = LIVE_INTERVAL_SECONDS if terminal else LINES_INTERVAL_SECONDS
    try:
        with exit_on_job_error(report), _show_progress(client, job, watch, terminal) as refresh:
            answer = wait_with_progress(client, job, timeout, refresh, interval)
    except KeyboardInterrupt:
        cancelled = client.cancel(job)
        typer.echo(f"The job {job} " + ("was cancelled" if cancelled else "had ended already"), err=True)
        if json:
            print_json({"job": job, "state": str(client.status(job)), "rows": _dump_rows(client, job)})
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:  # the job failed, and its error is printed
        if terminal or watch:
            typer.echo(f"Details: gridq job {job}", err=True)
        raise
    if terminal:
        steps = format_count(client.view(job).of, "step")
        typer.echo(f"{steps} in {time.monotonic() - started:.1f} s, job {job}", err=True)
    if json:
        print_json({"job": job, "state": "done", "result": answer, "rows": _dump_rows(client, job)})
    else:
        print_answer(answer)


def _show_progress(
    client: BaseClient, job: str, watch: bool, terminal: bool
) -> AbstractContextManager[Refresh]:
    from gridq.cli.progress import show_lines, show_live

    if terminal:
        return show_live(client, job)
    return show_lines(client, job, rows=watch)


def _derive_name(graph: str) -> dict[str, str]:
    """Return the option `name` from the name of the graph's file; no option if the graph comes from stdin."""
    stem = re.sub(r"[^\w .:/@+-]", "_", Path(graph).stem)[:64]
    return {} if graph == STDIN or not stem else {"name": stem}


def _dump_rows(client: BaseClient, job: str) -> list[Json]:
    return [row.model_dump() for row in client.rows(job)]
