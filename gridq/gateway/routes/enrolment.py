"""Routes for workers that are reached over HTTP: enrol, send a heartbeat, leave."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from gridq.errors import SeatNotFound
from gridq.gateway.auth.caller import worker_secret
from gridq.gateway.grid.connection import Door
from gridq.gateway.http.schemas import faults
from gridq.gateway.http_workers.enrolment import (
    Enrolled,
    Heartbeat,
    WorkerAdvertisement,
    beat,
    enrol,
    leave,
    seat_of,
)

router = APIRouter(tags=["workers"])

WorkerId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="the worker's id")]
Secret = [Depends(worker_secret)]


@router.post(
    "/workers",
    status_code=201,
    summary="Enrol a worker that is asked over HTTP",
    response_model=Enrolled,
    responses=faults(400, 401, 403, 413, 429, 503),
    dependencies=Secret,
)
async def enrolled(request: Request, about: WorkerAdvertisement) -> Enrolled:
    """From now on it is a seat that serves the models which it names, and stages that need them are posted to
    its `/execute`. A worker that starts anew enrols again. With the header X-Grid-Secret.
    """
    door: Door = request.app.state.door
    await door.call(enrol, door.client.redis, door.keys, about)
    request.app.state.hosting.look_soon()
    return Enrolled(worker_id=about.worker_id, seat=seat_of(about.worker_id))


@router.post(
    "/workers/{id}/heartbeat",
    status_code=204,
    summary="An enrolled worker lives",
    response_class=Response,
    responses=faults(400, 401, 403, 404, 413, 429, 503),
    dependencies=Secret,
)
async def heartbeat(request: Request, id: WorkerId, about: Heartbeat) -> Response:
    """It is kept for three more heartbeats. 404: it is not known any more, and enrols again."""
    door: Door = request.app.state.door
    if not await door.call(beat, door.client.redis, door.keys, id, about):
        raise _unknown(id)
    if about.capabilities:
        request.app.state.hosting.look_soon()
    return Response(status_code=204)


@router.delete(
    "/workers/{id}",
    status_code=204,
    summary="An enrolled worker goes",
    response_class=Response,
    responses=faults(400, 401, 403, 404, 429, 503),
    dependencies=Secret,
)
async def left(request: Request, id: WorkerId) -> Response:
    """It is asked nothing more; what it runs may finish within GRIDQ_DRAIN."""
    door: Door = request.app.state.door
    if not await door.call(leave, door.client.redis, door.keys, id):
        raise _unknown(id)
    request.app.state.hosting.look_soon()
    return Response(status_code=204)


def _unknown(worker_id: str) -> SeatNotFound:
    details = {"path": worker_id, "fix": "enrol it by POST /workers"}
    return SeatNotFound(f"No worker {worker_id!r} is enrolled", details)
