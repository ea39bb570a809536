"""`gridq chat`: talk to a model of the grid, line by line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, print_error
from gridq.cli.grid import GridOption

if TYPE_CHECKING:
    from gridq.client import BaseClient
    from gridq.protocol.models import Json

app = typer.Typer()

HELP = "Empty line or Ctrl-D: end. /new: forget what was said. Ctrl-C: stop the answer."


@app.command(epilog=EPILOG, short_help="Talk to a model, to try it.")
def chat(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Name of a model or a family, or any.", show_default=False)
    ] = "any",
    *,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="System message.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of an answer.")] = 1024,
    grid: GridOption = None,
    debug: DebugOption = False,
) -> None:
    """Talk to a model: each line is a message, and the answer is printed as it comes.

    Ctrl-C stops an answer, and the job with it. An empty line or Ctrl-D ends the chat. From a pipe, each line
    of stdin is a message.
    """
    from gridq.cli.grid import load_settings, open_client
    from gridq.errors import GridError

    start: list[Json] = [] if system is None else [{"role": "system", "content": system}]
    messages = list(start)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        typer.echo(HELP, err=True)
    with open_client(load_settings(grid)) as client:
        for line in _read_lines(is_terminal):
            if line == "/new":
                messages = list(start)
                continue
            messages.append({"role": "user", "content": line})
            try:
                answer = _answer(client, model, messages, max_tokens)
            except GridError as exc:
                messages.pop()
                if not is_terminal:
                    raise
                print_error(exc)
                continue
            messages.append({"role": "assistant", "content": answer})


def _read_lines(is_terminal: bool) -> Iterator[str]:
    """Yield the lines that the user types; from a pipe, all of them that are not empty."""
    while True:
        try:
            if is_terminal:
                sys.stderr.write("> ")
                sys.stderr.flush()
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            return
        if not line or (is_terminal and not line.strip()):
            return
        if line.strip():
            yield line.strip()


def _answer(client: BaseClient, model: str, messages: list[Json], max_tokens: int) -> str:
    """Print the answer to `messages` as it comes, and return it. Ctrl-C stops it. Raises GridError."""
    from gridq.cli.interrupts import clear_interrupt

    call = {"id": "llm_chat", "config": {"model": model, "messages": messages, "max_tokens": max_tokens}}
    effects = [{"effect": "Llm", "model": model}]
    job = client.submit({"root": {"op": "Stage", **call, "effects": effects}}, stream=True, name="chat")
    pieces: list[str] = []
    started = time.monotonic()
    try:
        for piece in client.stream(job):
            text = piece.value if isinstance(piece.value, str) else ""
            pieces.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        client.cancel(job)
        clear_interrupt()
        sys.stderr.write("\nStopped\n")
    else:
        sys.stdout.write("\n")
        if sys.stderr.isatty():
            seat = next((row.worker for row in reversed(client.rows(job))), "")
            sys.stderr.write(f"[{seat}, {time.monotonic() - started:.1f} s]\n")
    sys.stdout.flush()
    return "".join(pieces)
