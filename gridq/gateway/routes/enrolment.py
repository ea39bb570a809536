"""Routes for workers over HTTP: enrol, send heartbeats, leave."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from gridq.config.urls import is_loopback
from gridq.errors import SeatNotFound
from gridq.gateway.auth.caller import find_client_address, require_worker_secret
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.http.request_body import check_keys
from gridq.gateway.http.schemas import describe_errors
from gridq.gateway.http_workers.addresses import check_url
from gridq.gateway.http_workers.enrolment import (
    EnrolmentResult,
    Heartbeat,
    StoredAdvertisement,
    WorkerAdvertisement,
    enrol,
    make_seat_name,
    record_heartbeat,
    remove,
)


class StrictRequest(Request):
    """A request whose JSON body has no key twice in one object."""

    async def json(self) -> Any:
        raw = await self.body()
        body = await super().json()
        check_keys(raw, body)
        return body


class StrictRoute(APIRoute):
    """A route that reads its body as a StrictRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


router = APIRouter(tags=["workers"], route_class=StrictRoute)

WorkerId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="The worker's ID.")]
Secret = [Depends(require_worker_secret)]


@router.post(
    "/workers",
    status_code=201,
    summary="Enrol a worker over HTTP",
    response_model=EnrolmentResult,
    responses=describe_errors(400, 401, 403, 413, 429, 503),
    dependencies=Secret,
)
async def enrol_worker(request: Request, body: WorkerAdvertisement) -> EnrolmentResult:
    """Enrol a worker, or replace what it advertised before. The grid gets a seat that serves its models,
    and posts stages for them to its `/execute`. Enrol again after a restart. Send the worker secret in
    `X-Grid-Secret`.
    """
    grid: GridConnection = request.app.state.grid
    is_local = is_loopback(find_client_address(request))
    await check_url(body.url, grid.options.worker_networks, is_local=is_local)
    stored = StoredAdvertisement(**dict(body), is_local=is_local)
    await grid.call(enrol, grid.client.redis, grid.keys, stored)
    request.app.state.worker_host.reconcile_soon()
    return EnrolmentResult(worker_id=body.worker_id, seat=make_seat_name(body.worker_id))


@router.post(
    "/workers/{id}/heartbeat",
    status_code=204,
    summary="Send a heartbeat",
    response_class=Response,
    responses=describe_errors(400, 401, 403, 404, 413, 429, 503),
    dependencies=Secret,
)
async def send_heartbeat(request: Request, id: WorkerId, body: Heartbeat) -> Response:
    """Keep a worker enrolled for three more heartbeat intervals. After a 404 the worker must enrol again."""
    grid: GridConnection = request.app.state.grid
    if not await grid.call(record_heartbeat, grid.client.redis, grid.keys, id, body):
        raise _make_not_enrolled_error(id)
    if body.capabilities:
        request.app.state.worker_host.reconcile_soon()
    return Response(status_code=204)


@router.delete(
    "/workers/{id}",
    status_code=204,
    summary="Remove a worker",
    response_class=Response,
    responses=describe_errors(400, 401, 403, 404, 429, 503),
    dependencies=Secret,
)
async def remove_worker(request: Request, id: WorkerId) -> Response:
    """Remove a worker. It gets no more stages; running ones may finish within GRIDQ_DRAIN seconds."""
    grid: GridConnection = request.app.state.grid
    if not await grid.call(remove, grid.client.redis, grid.keys, id):
        raise _make_not_enrolled_error(id)
    request.app.state.worker_host.reconcile_soon()
    return Response(status_code=204)


def _make_not_enrolled_error(worker_id: str) -> SeatNotFound:
    details = {"path": worker_id, "fix": "enrol it with POST /workers"}
    return SeatNotFound(f"No worker {worker_id!r} is enrolled", details)
