"""Workers over HTTP: the live seats, one of them, draining."""

from __future__ import annotations

import asyncio
import difflib
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from gridq.errors import SeatNotFound
from gridq.gateway.auth.caller import Caller, require_scope
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import snapshot_of
from gridq.gateway.http.schemas import DrainResult, Worker, error_responses, to_cents
from gridq.protocol.models import Json
from gridq.protocol.queue_names import get_kind
from gridq.seats import registry
from gridq.seats.registry import LiveSeat

router = APIRouter(tags=["workers"])

MAX_WAIT_SECONDS = 10.0
"""Seconds for which a drain waits at most for the seat to obey; its worker renews each second."""

MAX_SUGGESTIONS = 3
"""Names that are told where one is wrong."""


any_key = require_scope("read", "submit")
"""Whoever has a key, whatever it is for; on a grid without keys everybody."""

Operator = Annotated[Caller, Depends(require_scope("operate"))]
WaitSeconds = Annotated[
    float, Query(ge=0, allow_inf_nan=False, description="seconds to wait until it obeys, at most 10")
]
SeatName = Annotated[
    str, Path(max_length=200, description="the seat, as machine.name; its name alone where one is called so")
]


@router.get(
    "/workers",
    summary="List the live seats",
    response_model=list[Worker],
    responses=error_responses(400, 401, 403, 429, 503),
    dependencies=[Depends(any_key)],
)
async def workers(
    request: Request,
    *,
    queue: Annotated[str | None, Query(description="only those that serve it, such as llm:any")] = None,
    kind: Annotated[str | None, Query(description="only those of it, such as gpu")] = None,
    state: Annotated[str | None, Query(description="only those in it, such as ready or paused")] = None,
    routers: Annotated[bool, Query(description="the routers' own seats too")] = False,
) -> Any:
    """Every live seat: what it says of itself, what it holds, what it may spend. At most a second old."""
    grid: GridConnection = request.app.state.grid
    seats = await snapshot_of(request.app).seats.get()
    return [
        worker_record(seat, grid.config.lease_ms)
        for seat in seats
        if (routers or seat.kind != registry.ROUTER_KIND)
        and (queue is None or queue in seat.queues)
        and kind in (None, seat.kind)
        and state in (None, seat.state)
    ]


@router.get(
    "/workers/{seat}",
    summary="One live seat",
    response_model=Worker,
    responses=error_responses(400, 401, 403, 404, 429, 503),
    dependencies=[Depends(any_key)],
)
async def worker(request: Request, seat: SeatName) -> Any:
    """One live seat, a router's too."""
    grid: GridConnection = request.app.state.grid
    return worker_record(find_seat(await snapshot_of(request.app).seats.get(), seat), grid.config.lease_ms)


@router.post(
    "/workers/{seat}/drain",
    summary="Let a seat take nothing more",
    response_model=DrainResult,
    responses=error_responses(400, 401, 403, 404, 429, 503),
)
async def drain(request: Request, seat: SeatName, caller: Operator, wait: WaitSeconds = 0.0) -> DrainResult:
    """What runs on it goes on, what waits goes to others. It holds though the worker is restarted, until it
    is undone.
    """
    grid: GridConnection = request.app.state.grid
    found = find_seat(await snapshot_of(request.app).seats.get(), seat).seat
    await grid.call(registry.drain, grid.client.redis, grid.keys, found)
    return await _wait_for_seat(request, found, wait, drained=True)


@router.post(
    "/workers/{seat}/undrain",
    summary="Let a seat take work again",
    response_model=DrainResult,
    responses=error_responses(400, 401, 403, 404, 429, 503),
)
async def undrain(request: Request, seat: SeatName, caller: Operator, wait: WaitSeconds = 0.0) -> DrainResult:
    """Undo a drain; also that of a seat that is not live now, named in full."""
    grid: GridConnection = request.app.state.grid
    found = seat
    if not await grid.call(registry.undrain, grid.client.redis, grid.keys, seat):
        found = find_seat(await snapshot_of(request.app).seats.get(), seat).seat
        await grid.call(registry.undrain, grid.client.redis, grid.keys, found)
    return await _wait_for_seat(request, found, wait, drained=False)


def find_seat(seats: list[LiveSeat], given: str) -> LiveSeat:
    """The one of `seats` that is meant. SeatNotFound: none, or several, are."""
    for seat in seats:
        if seat.seat == given:
            return seat
    called = [seat for seat in seats if seat.seat.partition(".")[2] == given]
    if len(called) == 1:
        return called[0]
    names = {name: seat.seat for seat in seats for name in (seat.seat, seat.seat.partition(".")[2])}
    close = [names[name] for name in difflib.get_close_matches(given, list(names), MAX_SUGGESTIONS, 0.6)]
    near = [seat.seat for seat in called] or sorted(set(close))
    few = f"{len(called)} live seats are called {given!r}" if called else f"No live seat is called {given!r}"
    details = {"path": given, "fix": "name it in full: " + " or ".join(near) if near else "see /workers"}
    raise SeatNotFound(few, details)


async def _wait_for_seat(request: Request, name: str, wait: float, *, drained: bool) -> DrainResult:
    """What the seat does, once it is seen to obey or `wait` seconds have passed."""
    snapshot = snapshot_of(request.app)
    until = time.monotonic() + min(wait, MAX_WAIT_SECONDS)
    while True:
        snapshot.invalidate()
        seat = next((each for each in await snapshot.seats.get() if each.seat == name), None)
        if seat is None or seat.drain_acknowledged or time.monotonic() >= until:
            drain_acknowledged, busy = (True, 0) if seat is None else (seat.drain_acknowledged, seat.busy)
            return DrainResult(seat=name, drained=drained, drain_acknowledged=drain_acknowledged, busy=busy)
        await asyncio.sleep(0.1)


def worker_record(seat: LiveSeat, lease_ms: int) -> dict[str, Json]:
    """A seat as Worker has it. Its worker was seen within its lease, else it would not be live."""
    said = seat.capability if seat.seat.startswith(f"{registry.HTTP_MACHINE}.") else {}
    return {
        **seat.model_dump(),
        "free_slots": seat.free,
        "worker_id": said.get("worker_id", seat.seat),
        "url": said.get("url", f"seat:{seat.seat}"),
        "capabilities": _capabilities(seat),
        "in_flight_jobs": seat.busy,
        "last_seen": datetime.fromtimestamp(time.time() - lease_ms / 1000, UTC),
        "healthy": seat.state == "ready" and not seat.stale,
    }


def _capabilities(seat: LiveSeat) -> list[dict[str, Json]]:
    """The models of a seat, in noether-grid's words."""
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
        names = [queue.partition(":")[2] for queue in seat.queues if get_kind(queue) == "llm"]
    return [
        {
            "provider": host if isinstance(host, str) else seat.kind,
            "model": name,
            "auth_via": "api_key",
            "budget_monthly_cents": None if seat.budget is None else to_cents(seat.budget),
            "budget_remaining_cents": None if seat.budget_left is None else seat.budget_left // 10_000,
            "rate_limit_rpm": seat.per_minute,
        }
        for name in names
    ]
