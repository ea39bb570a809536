"""Load a model at a live seat, or unload one: `gridq load`, `gridq unload`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.commands.drain import SeatArgument, resolve_seat
from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import open_broker_client
from gridq.cli.output import print_json
from gridq.errors import WaitTimeout, error_from_record

if TYPE_CHECKING:
    from gridq.seats.model_commands import Action

app = typer.Typer()

READ_SECONDS = 10.0
"""The time within which a live seat reads a command; its worker looks each second."""

POLL_SECONDS = 0.2

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Model of the seat.", show_default=False)]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.")]


@app.command(epilog=EPILOG, short_help="Load a model at a seat before a request needs it.")
def load(
    seat: SeatArgument,
    model: ModelArgument,
    timeout: TimeoutOption = 600.0,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Load a model of a live gpu seat, and wait until it is loaded.

    Idle models give way if memory is short. Like any other, the model is unloaded when nobody has used it for
    the seat's idle_unload.
    """
    _order("load", seat, model, timeout, as_json=json)


@app.command(epilog=EPILOG, short_help="Unload an idle model of a seat.")
def unload(
    seat: SeatArgument,
    model: ModelArgument,
    timeout: TimeoutOption = 60.0,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Unload a model of a live gpu seat, and wait until its memory is free. A model in use stays loaded.

    The next request for it loads it again.
    """
    _order("unload", seat, model, timeout, as_json=json)


def _order(action: Action, seat: str, model: str, timeout: float, *, as_json: bool) -> None:
    """Send a command and wait for its end. Raises the seat's error, and WaitTimeout."""
    from gridq.config.settings import settings
    from gridq.seats import model_commands

    with open_broker_client(settings()) as client:
        name = resolve_seat([each.seat for each in client.workers()], seat)
        command = model_commands.send_command(client.redis, client.keys, name, action, model)
        began = time.monotonic()
        while True:
            answer = model_commands.read_answer(client.redis, client.keys, command)
            if answer.state in {"done", "failed"}:
                break
            waited = time.monotonic() - began
            if waited > timeout or (answer.state == "waiting" and waited > READ_SECONDS):
                is_read = answer.state == "running"
                raise WaitTimeout(
                    f"The seat {name} has not {'finished' if is_read else 'read'} the command yet",
                    {
                        "reason": "it goes on" if is_read else "its worker does not load models, or is away",
                        "fix": "check its state: gridq seats",
                    },
                )
            time.sleep(POLL_SECONDS)
    if answer.error is not None:
        raise error_from_record(answer.error)
    if as_json:
        print_json({"seat": name, "model": model, "state": f"{action}ed"})
    else:
        typer.echo(f"{model} is {action}ed at {name}")
