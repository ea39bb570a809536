"""`gridq run`: submit a graph, watch it, print the answer."""

from __future__ import annotations

import re
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import EXITS, INTERRUPTED, AsJson, Debug, job_errors, tell_json
from gridq.cli.grid import GridUrl, grid_of, settings_for
from gridq.cli.inputs import (
    STDIN,
    GraphFile,
    StagesFolder,
    of_file,
    read_graph,
    read_input,
    seconds_of,
    with_stages,
)
from gridq.cli.output import echo_answer, echo_json
from gridq.errors import ConfigError, GridError

if TYPE_CHECKING:
    from gridq.cli.progress import Show
    from gridq.client import Client
    from gridq.protocol.models import Json

app = typer.Typer()

WEEK = 7 * 86_400.0


@app.command(epilog=EXITS, short_help="Run a graph and print its answer.")
def run(
    graph: GraphFile,
    *,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="JSON|@FILE|-",
            help="The graph's input; null without it.",
            show_default=False,
        ),
    ] = None,
    stages: StagesFolder = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="S",
            min=0,
            help="Seconds to wait; the job goes on after them.",
            show_default=False,
        ),
    ] = None,
    wait_for_seat: Annotated[
        bool, typer.Option("--wait-for-seat", help="Accept the job though no live seat serves what it needs.")
    ] = False,
    queue_timeout: Annotated[
        str | None,
        typer.Option(
            "--queue-timeout",
            metavar="TIME",
            help="The job expires where a stage stands ready for longer: 90, 30m, 1h.",
            show_default=False,
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="The same key, graph and input are the same job, as long as its result is kept.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show progress on stderr though it is no terminal.")
    ] = False,
    grid: GridUrl = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a graph and print its answer: a text as it is, anything else as JSON.

    On a terminal the progress is shown while it runs. Ctrl-C cancels the job. Where it waits for long, a line
    on stderr says what for. The job is called as the graph's file.
    """
    if graph == STDIN and input == STDIN:
        raise ConfigError(
            "Graph and input cannot both come from stdin", {"path": "--input", "fix": "put one into a file"}
        )
    seconds = None if queue_timeout is None else seconds_of(queue_timeout, "--queue-timeout", 0.001, WEEK)
    text = read_graph(graph)
    value = read_input(input)
    config = with_stages(settings_for(grid), stages)
    if stages is not None and config.url is not None:
        raise ConfigError(
            "A gateway knows its own stages alone",
            {"path": "--stages", "fix": "leave it out, or name the grid's server: --grid redis://…"},
        )
    with grid_of(config) as client:
        with of_file(graph):
            job = client.submit(
                text,
                value,
                wait_for_seat=wait_for_seat,
                queue_timeout=seconds,
                idempotency_key=idempotency_key,
                **_named(graph),
            )
        _follow(client, job, timeout, watch, json)


def _follow(client: Client, job: str, timeout: float | None, watch: bool, json: bool) -> None:
    """Wait for the job and print how it ended."""
    from gridq.cli.progress import PLAIN_TICK, TICK, wait

    def tell(exc: GridError) -> None:
        if json:
            state = str(client.status(job))
            tell_json(exc, job=job, state=state, rows=_rows(client, job))

    since = time.monotonic()
    terminal = sys.stderr.isatty()
    try:
        with job_errors(tell), _shown(client, job, watch, terminal) as show:
            answer = wait(client, job, timeout, show, TICK if terminal else PLAIN_TICK)
    except KeyboardInterrupt:
        ended = not client.cancel(job)
        typer.echo(f"The job {job} " + ("had ended already" if ended else "was cancelled"), err=True)
        if json:
            echo_json({"job": job, "state": str(client.status(job)), "rows": _rows(client, job)})
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:  # it failed, and the line that says why is out
        if terminal or watch:
            typer.echo(f"All of it: gridq job {job}", err=True)
        raise
    if terminal:
        count = len(client.rows(job))
        typer.echo(
            f"{count} stage{'' if count == 1 else 's'} in {time.monotonic() - since:.1f} s, job {job}",
            err=True,
        )
    if json:
        echo_json({"job": job, "state": "done", "result": answer, "rows": _rows(client, job)})
    else:
        echo_answer(answer)


def _shown(client: Client, job: str, watch: bool, terminal: bool) -> AbstractContextManager[Show]:
    from gridq.cli.progress import drawn, told

    if terminal:
        return drawn(client, job)
    return told(client, job, rows=watch)


def _named(graph: str) -> dict[str, str]:
    """The job's name by the graph's file; its own where that comes from stdin."""
    stem = re.sub(r"[^\w .:/@+-]", "_", Path(graph).stem)[:64]
    return {} if graph == STDIN or not stem else {"name": stem}


def _rows(client: Client, job: str) -> list[Json]:
    return [row.model_dump() for row in client.rows(job)]
