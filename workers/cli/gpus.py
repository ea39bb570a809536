"""`gridq gpus`: the devices of the grid, their memory and who uses it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import GridOption, describe_grid, load_settings, open_client
from gridq.cli.output import format_span, make_console, make_table, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from gridq.protocol.models import Json
    from gridq.seats.registry import LiveSeat

app = typer.Typer()

KIND = "gpu"
WATCH_SECONDS = 2.0
STALE_SECONDS = 60.0
"""A reading that is older is said to be old: its driver does not answer, or its worker is busy."""


@app.command(epilog=EPILOG, short_help="Show each GPU: its memory, who uses it, its models.")
def gpus(
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds.")] = False,
) -> None:
    """Show every device: its memory, utilisation, temperature and power, the loaded models with their last
    use and its agent, and the Python stages that run on it.

    Memory is in GB. Allocated: reserved by gridq for models and stages. Used: of gridq's processes. Orphan:
    of gridq's processes whose worker is gone. Foreign: of all other processes. Workers read their device
    every five seconds.
    """
    config = load_settings(grid)
    with open_client(config) as client:
        if watch and not json:
            _watch(lambda: make_gpus_table(_select(client.workers())))
            return
        seats = _select(client.workers())
    if json:
        print_json([describe_seat(seat) for seat in seats])
    elif seats:
        make_console().print(make_gpus_table(seats))
    else:
        fix = "start one: gridq worker; gridq probe shows what this machine has"
        typer.echo(f"No seat with a GPU or CPU is live at {describe_grid(config)}. Fix: {fix}", err=True)


def _select(seats: Sequence[LiveSeat]) -> list[LiveSeat]:
    return [seat for seat in seats if seat.kind == KIND]


def _watch(make: Any) -> None:
    """Show the table again and again, until the user interrupts it."""
    from rich.live import Live

    with Live(make(), console=make_console(), auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_SECONDS)
            live.update(make(), refresh=True)


def describe_seat(seat: LiveSeat) -> dict[str, Json]:
    """Return one device as JSON: the seat, its state, what it is and how it is.

    `device` is its last reading; None until its worker has told one.
    """
    capability = {
        name: seat.capability.get(name) for name in ("name", "vendor", "backend", "compute_cap", "engine")
    }
    state = {"state": seat.state, "reason": seat.reason, "busy": seat.busy, "concurrency": seat.concurrency}
    return {"seat": seat.seat, **state, **capability, "device": None, **seat.details}


def make_gpus_table(seats: Sequence[LiveSeat]) -> Table:
    """Return a table with a row for each device; memory is in GB of 2**30 bytes."""
    columns = ("seat", "device", "allocated", "used", "orphan", "foreign", "free", "of", "busy", "°C", "W")
    table = make_table(*columns, "models, processes, state", numbers=columns[2:], keep_first=True, gap=1)
    for seat in seats:
        device = _get_dict(seat.details, "device")
        name = str(seat.capability.get("name") or seat.capability.get("device") or "-")
        memory = ("allocated_mb", "used_mb", "orphan_mb", "foreign_mb", "free_mb", "memory_mb")
        busy = device.get("utilisation")
        table.add_row(
            seat.seat,
            name,
            *(_format_gb(device.get(each)) for each in memory),
            "-" if busy is None else f"{busy:.0%}",
            _format_number(device.get("temperature")),
            _format_number(device.get("power_watts")),
            "\n".join(_list_remarks(seat, device)),
        )
    return table


def _list_remarks(seat: LiveSeat, device: Mapping[str, Any]) -> list[str]:
    """Return what a device does: its state, its models, who else uses it, and what is wrong with it."""
    from gridq.cli.commands.workers import format_state

    remarks = [] if seat.state == "ready" else [format_state(seat)]
    loading = _get_dict(seat.details, "loading")
    shares = {each["model"]: each["share"] for each in loading.values()}
    for name, done in shares.items():
        remarks.append(f"loading {name}" + ("" if done is None else f", {done:.0%}"))
    remarks += [_format_model(model) for model in seat.details.get("models") or ()]
    remarks += [_format_stage(stage) for stage in seat.details.get("stages") or ()]
    for process in seat.details.get("processes") or ():
        if process.get("whose") != "ours":
            size = "" if process.get("memory_mb") is None else f", {_format_gb(process['memory_mb'])} GB"
            remarks.append(f"{process.get('whose')}: {process.get('name') or '?'} {process.get('pid')}{size}")
    remarks += [str(fault) for fault in device.get("faults") or ()]
    read_at = device.get("read_at")
    if isinstance(read_at, int | float) and time.time() - read_at > STALE_SECONDS:
        remarks.append(f"read {format_span(time.time() - read_at)} ago")
    return remarks


def _format_model(model: Mapping[str, Any]) -> str:
    """Format a model: `qwen3-8b 5.1 GB, used by ann 2 min ago`."""
    text = str(model.get("name"))
    if model.get("memory_mb"):
        text += f" {_format_gb(model['memory_mb'])} GB"
    who = f" by {model['agent']}" if model.get("agent") else ""
    if model.get("running"):
        return f"{text}, in use{who}"
    used_at = model.get("used_at")
    return text if not used_at else f"{text}, used{who} {format_span(time.time() - used_at)} ago"


def _format_stage(stage: Mapping[str, Any]) -> str:
    """Format a Python stage: `train 8.0 GB, agent ann, 2 min, protected`."""
    who = f", agent {stage['agent']}" if stage.get("agent") else ""
    protected = ", protected" if stage.get("protected") else ""
    began_at = stage.get("began_at")
    since = f", {format_span(time.time() - began_at)}" if isinstance(began_at, int | float) else ""
    return f"{stage.get('name')} {_format_gb(stage.get('memory_mb'))} GB{who}{since}{protected}"


def _get_dict(details: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = details.get(name)
    return found if isinstance(found, dict) else {}


def _format_gb(mb: Any) -> str:
    return f"{mb / 1024:.1f}" if isinstance(mb, int | float) else "-"


def _format_number(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, int | float) else "-"
