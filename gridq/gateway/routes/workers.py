"""Routes for seats: list them, read one, drain and undrain it, load and unload its models."""

from __future__ import annotations

import asyncio
import difflib
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from gridq.errors import SeatNotFound, error_from_record
from gridq.gateway.auth.caller import Caller, require_scope
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import get_snapshot
from gridq.gateway.http.schemas import DrainResult, ModelResult, Worker, describe_errors, to_cents
from gridq.protocol.models import Json
from gridq.protocol.queue_names import LLM, get_kind, get_name
from gridq.seats import model_commands, registry
from gridq.seats.model_commands import Action
from gridq.seats.registry import LiveSeat

router = APIRouter(tags=["workers"])

MAX_WAIT_SECONDS = 10.0
"""The longest that a request waits for a seat to apply a drain. Its worker renews its lease each second."""

MAX_SUGGESTIONS = 3
"""Maximum number of names that an error suggests."""


any_key = require_scope("read", "submit")
"""Any caller with a key, whatever its scopes; on a grid without keys everybody."""

AnyKey = Annotated[Caller, Depends(any_key)]

Operator = Annotated[Caller, Depends(require_scope("operate"))]
WaitSeconds = Annotated[
    float,
    Query(
        ge=0,
        allow_inf_nan=False,
        description="Seconds to wait until the seat's worker has done it, at most 10.",
    ),
]
ModelName = Annotated[str, Query(min_length=1, max_length=200, description="A model of the seat.")]
SeatName = Annotated[
    str,
    Path(
        max_length=200,
        description="The seat, as `machine.name`. The name alone is enough if only one live seat has it.",
    ),
]


@router.get(
    "/workers",
    summary="List live seats",
    response_model=list[Worker],
    responses=describe_errors(400, 401, 403, 429, 503),
)
async def list_workers(
    request: Request,
    caller: AnyKey,
    *,
    queue: Annotated[
        str | None, Query(description="Only seats that serve this queue, such as `llm:any`.")
    ] = None,
    kind: Annotated[str | None, Query(description="Only seats of this kind, such as `gpu`.")] = None,
    state: Annotated[
        str | None, Query(description="Only seats in this state, such as `ready` or `paused`.")
    ] = None,
    routers: Annotated[bool, Query(description="Include the seats of the routers.")] = False,
) -> Any:
    """List live seats with what they advertise, run and may still spend. The list is at most a second old.

    `details` names agents and programs: only keys with the scope `read-all` or `operate` get it.
    """
    grid: GridConnection = request.app.state.grid
    seats = await get_snapshot(request.app).seats.get()
    return [
        make_worker_record(seat, grid.config.lease_ms, sees_all=caller.sees_all)
        for seat in seats
        if (routers or seat.kind != registry.ROUTER_KIND)
        and (queue is None or queue in seat.queues)
        and kind in (None, seat.kind)
        and state in (None, seat.state)
    ]


@router.get(
    "/workers/{seat}",
    summary="Read a live seat",
    response_model=Worker,
    responses=describe_errors(400, 401, 403, 404, 429, 503),
)
async def read_worker(request: Request, caller: AnyKey, seat: SeatName) -> Any:
    """Read one live seat. It may be a router's."""
    grid: GridConnection = request.app.state.grid
    found = await find_seat(request, seat)
    return make_worker_record(found, grid.config.lease_ms, sees_all=caller.sees_all)


@router.post(
    "/workers/{seat}/drain",
    summary="Drain a seat",
    response_model=DrainResult,
    responses=describe_errors(400, 401, 403, 404, 429, 503),
)
async def drain_worker(
    request: Request, seat: SeatName, caller: Operator, wait: WaitSeconds = 0.0
) -> DrainResult:
    """Stop a seat from taking new work. Running stages go on; waiting ones go to other seats. The drain
    lasts until it is undone, even if the worker restarts.
    """
    grid: GridConnection = request.app.state.grid
    seat_name = (await find_seat(request, seat)).seat
    await grid.call(registry.drain, grid.client.redis, grid.keys, seat_name)
    return await _wait_for_seat(request, seat_name, wait, drained=True)


@router.post(
    "/workers/{seat}/undrain",
    summary="Undrain a seat",
    response_model=DrainResult,
    responses=describe_errors(400, 401, 403, 404, 429, 503),
)
async def undrain_worker(
    request: Request, seat: SeatName, caller: Operator, wait: WaitSeconds = 0.0
) -> DrainResult:
    """Let a drained seat take work again. To undrain a seat that is not live, pass its full name."""
    grid: GridConnection = request.app.state.grid
    seat_name = seat
    if not await grid.call(registry.undrain, grid.client.redis, grid.keys, seat):
        seat_name = (await find_seat(request, seat)).seat
        await grid.call(registry.undrain, grid.client.redis, grid.keys, seat_name)
    return await _wait_for_seat(request, seat_name, wait, drained=False)


@router.post(
    "/workers/{seat}/load",
    summary="Load a model",
    response_model=ModelResult,
    responses=describe_errors(400, 401, 403, 404, 429, 502, 503),
)
async def load_model(
    request: Request, seat: SeatName, caller: Operator, model: ModelName, wait: WaitSeconds = 0.0
) -> ModelResult:
    """Load a model of a seat before a request needs it. If that takes longer than you wait, it goes on; send
    the same request again to wait for it.
    """
    return await _send_command(request, seat, "load", model, wait)


@router.post(
    "/workers/{seat}/unload",
    summary="Unload a model",
    response_model=ModelResult,
    responses=describe_errors(400, 401, 403, 404, 429, 502, 503),
)
async def unload_model(
    request: Request, seat: SeatName, caller: Operator, model: ModelName, wait: WaitSeconds = 0.0
) -> ModelResult:
    """Unload an idle model of a seat. The next request for it loads it again."""
    return await _send_command(request, seat, "unload", model, wait)


async def _send_command(request: Request, seat: str, action: Action, model: str, wait: float) -> ModelResult:
    """Send a command to a seat. Return the command's state once it is done, or after `wait` seconds (at most
    MAX_WAIT_SECONDS). Raises the error of a command that failed at the seat.
    """
    grid: GridConnection = request.app.state.grid
    name = (await find_seat(request, seat)).seat
    redis, keys = grid.client.redis, grid.keys
    command = await grid.call(model_commands.send_command, redis, keys, name, action, model)
    until = time.monotonic() + min(wait, MAX_WAIT_SECONDS)
    while True:
        answer = await grid.call(model_commands.read_answer, redis, keys, command)
        if answer.state == "failed":
            raise error_from_record(answer.error or {})
        if answer.state == "done" or time.monotonic() >= until:
            return ModelResult(seat=name, model=model, state=answer.state)
        await asyncio.sleep(0.1)


async def find_seat(request: Request, given: str) -> LiveSeat:
    """Return the live seat that `given` names. Raises SeatNotFound if none or several match."""
    seats = await get_snapshot(request.app).seats.get()
    for seat in seats:
        if seat.seat == given:
            return seat
    called = [seat for seat in seats if seat.seat.partition(".")[2] == given]
    if len(called) == 1:
        return called[0]
    names = {name: seat.seat for seat in seats for name in (seat.seat, seat.seat.partition(".")[2])}
    close = [names[name] for name in difflib.get_close_matches(given, list(names), MAX_SUGGESTIONS, 0.6)]
    suggestions = [seat.seat for seat in called] or sorted(set(close))
    message = (
        f"{len(called)} live seats are named {given!r}" if called else f"No live seat is named {given!r}"
    )
    fix = (
        "use the full name: " + " or ".join(suggestions) if suggestions else "list the live seats at /workers"
    )
    details = {"path": given, "fix": fix}
    raise SeatNotFound(message, details)


async def _wait_for_seat(request: Request, name: str, wait: float, *, drained: bool) -> DrainResult:
    """Return the seat's state once it has applied the change, or after `wait` seconds."""
    snapshot = get_snapshot(request.app)
    until = time.monotonic() + min(wait, MAX_WAIT_SECONDS)
    while True:
        snapshot.invalidate()
        seat = next((each for each in await snapshot.seats.get() if each.seat == name), None)
        if seat is None or seat.drain_acknowledged or time.monotonic() >= until:
            drain_acknowledged, busy = (True, 0) if seat is None else (seat.drain_acknowledged, seat.busy)
            return DrainResult(seat=name, drained=drained, drain_acknowledged=drain_acknowledged, busy=busy)
        await asyncio.sleep(0.1)


def make_worker_record(seat: LiveSeat, lease_ms: int, *, sees_all: bool = False) -> dict[str, Json]:
    """Return a seat as Worker. A live seat renewed its lease at most `lease_ms` ago, which gives
    `last_seen`. Its details are for callers who may see everybody's jobs (`sees_all`).
    """
    advertised = seat.capability if seat.seat.startswith(f"{registry.HTTP_MACHINE}.") else {}
    return {
        **seat.model_dump(),
        "details": seat.details if sees_all else {},
        "free_slots": seat.free,
        "worker_id": advertised.get("worker_id", seat.seat),
        "url": advertised.get("url", f"seat:{seat.seat}"),
        "capabilities": _list_capabilities(seat),
        "in_flight_jobs": seat.busy,
        "last_seen": datetime.fromtimestamp(time.time() - lease_ms / 1000, UTC),
        "healthy": seat.state == "ready" and not seat.stale,
    }


def _list_capabilities(seat: LiveSeat) -> list[dict[str, Json]]:
    """Return the models of a seat as noether-grid's clients read them."""
    offered = seat.capability.get("offered")
    if seat.seat.startswith(f"{registry.HTTP_MACHINE}.") and isinstance(offered, list):
        left = None if seat.budget_left is None else seat.budget_left // 10_000
        return [{**each, "budget_remaining_cents": left} for each in offered]
    listed = seat.capability.get("models")
    host = seat.capability.get("host")
    names = [
        model["name"]
        for model in (listed if isinstance(listed, list) else [])
        if isinstance(model, dict) and isinstance(model.get("name"), str)
    ]
    if not names:
        names = [get_name(queue) for queue in seat.queues if get_kind(queue) == LLM]
    return [
        {
            "provider": host if isinstance(host, str) else seat.kind,
            "model": name,
            "auth_via": "api_key",
            "budget_monthly_cents": None if seat.budget is None else to_cents(seat.budget),
            "budget_remaining_cents": None if seat.budget_left is None else seat.budget_left // 10_000,
            "rate_limit_rpm": seat.requests_per_minute,
        }
        for name in names
    ]
