"""Workers over HTTP: the live seats, one of them, draining."""

from __future__ import annotations

import asyncio
import difflib
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from gridq.errors import SeatNotFound
from gridq.gateway.auth.caller import Caller, may
from gridq.gateway.grid.connection import Door
from gridq.gateway.grid.snapshot import glance_of
from gridq.gateway.http.schemas import Drained, Worker, cents, faults
from gridq.protocol.models import Json
from gridq.protocol.queue_names import kind_of
from gridq.seats import registry
from gridq.seats.registry import LiveSeat

router = APIRouter(tags=["workers"])

LONGEST_WAIT = 10.0
"""Seconds for which a drain waits at most for the seat to obey; its worker renews each second."""

NEAR = 3
"""Names that are told where one is wrong."""


anybody = may("read", "submit")
"""Whoever has a key, whatever it is for; on a grid without keys everybody."""

Operator = Annotated[Caller, Depends(may("operate"))]
Wait = Annotated[
    float, Query(ge=0, allow_inf_nan=False, description="seconds to wait until it obeys, at most 10")
]
Seat = Annotated[
    str, Path(max_length=200, description="the seat, as machine.name; its name alone where one is called so")
]


@router.get(
    "/workers",
    summary="List the live seats",
    response_model=list[Worker],
    responses=faults(400, 401, 403, 429, 503),
    dependencies=[Depends(anybody)],
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
    door: Door = request.app.state.door
    seats = await glance_of(request.app).seats.get()
    return [
        told(seat, door.config.lease_ms)
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
    responses=faults(400, 401, 403, 404, 429, 503),
    dependencies=[Depends(anybody)],
)
async def worker(request: Request, seat: Seat) -> Any:
    """One live seat, a router's too."""
    door: Door = request.app.state.door
    return told(named(await glance_of(request.app).seats.get(), seat), door.config.lease_ms)


@router.post(
    "/workers/{seat}/drain",
    summary="Let a seat take nothing more",
    response_model=Drained,
    responses=faults(400, 401, 403, 404, 429, 503),
)
async def drain(request: Request, seat: Seat, caller: Operator, wait: Wait = 0.0) -> Drained:
    """What runs on it goes on, what waits goes to others. It holds though the worker is restarted, until it
    is undone.
    """
    door: Door = request.app.state.door
    found = named(await glance_of(request.app).seats.get(), seat).seat
    await door.call(registry.drain, door.client.redis, door.keys, found)
    return await _obeyed(request, found, wait, drained=True)


@router.post(
    "/workers/{seat}/undrain",
    summary="Let a seat take work again",
    response_model=Drained,
    responses=faults(400, 401, 403, 404, 429, 503),
)
async def undrain(request: Request, seat: Seat, caller: Operator, wait: Wait = 0.0) -> Drained:
    """Undo a drain; also that of a seat that is not live now, named in full."""
    door: Door = request.app.state.door
    found = seat
    if not await door.call(registry.undrain, door.client.redis, door.keys, seat):
        found = named(await glance_of(request.app).seats.get(), seat).seat
        await door.call(registry.undrain, door.client.redis, door.keys, found)
    return await _obeyed(request, found, wait, drained=False)


def named(seats: list[LiveSeat], given: str) -> LiveSeat:
    """The one of `seats` that is meant. SeatNotFound: none, or several, are."""
    for seat in seats:
        if seat.seat == given:
            return seat
    called = [seat for seat in seats if seat.seat.partition(".")[2] == given]
    if len(called) == 1:
        return called[0]
    names = {name: seat.seat for seat in seats for name in (seat.seat, seat.seat.partition(".")[2])}
    close = [names[name] for name in difflib.get_close_matches(given, list(names), NEAR, 0.6)]
    near = [seat.seat for seat in called] or sorted(set(close))
    few = f"{len(called)} live seats are called {given!r}" if called else f"No live seat is called {given!r}"
    details = {"path": given, "fix": "name it in full: " + " or ".join(near) if near else "see /workers"}
    raise SeatNotFound(few, details)


async def _obeyed(request: Request, name: str, wait: float, *, drained: bool) -> Drained:
    """What the seat does, once it is seen to obey or `wait` seconds have passed."""
    glance = glance_of(request.app)
    until = time.monotonic() + min(wait, LONGEST_WAIT)
    while True:
        glance.forget()
        seat = next((each for each in await glance.seats.get() if each.seat == name), None)
        if seat is None or seat.obeys or time.monotonic() >= until:
            obeys, busy = (True, 0) if seat is None else (seat.obeys, seat.busy)
            return Drained(seat=name, drained=drained, obeys=obeys, busy=busy)
        await asyncio.sleep(0.1)


def told(seat: LiveSeat, lease_ms: int) -> dict[str, Json]:
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
        names = [queue.partition(":")[2] for queue in seat.queues if kind_of(queue) == "llm"]
    return [
        {
            "provider": host if isinstance(host, str) else seat.kind,
            "model": name,
            "auth_via": "api_key",
            "budget_monthly_cents": None if seat.budget is None else cents(seat.budget),
            "budget_remaining_cents": None if seat.budget_left is None else seat.budget_left // 10_000,
            "rate_limit_rpm": seat.per_minute,
        }
        for name in names
    ]
