"""Routes for queues, the capabilities on offer, and quarantined stages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from gridq.gateway.auth.caller import Caller
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import get_snapshot
from gridq.gateway.http.schemas import (
    CapabilityOffer,
    QuarantineRequest,
    QuarantineResult,
    Queue,
    describe_errors,
)
from gridq.gateway.routes.jobs import Reader, find_job
from gridq.gateway.routes.workers import Operator, any_key
from gridq.seats import registry
from gridq.views import quarantine

router = APIRouter(tags=["queues"])


@router.get(
    "/queues",
    summary="List queues",
    response_model=list[Queue],
    responses=describe_errors(400, 401, 403, 429, 503),
    dependencies=[Depends(any_key)],
)
async def list_queues(
    request: Request,
    *,
    queue: Annotated[str | None, Query(description="Only this queue, such as `llm:any`.")] = None,
) -> Any:
    """List the queues that hold stages or that a live seat serves, the routers' queue first. The list is at
    most a second old.
    """
    found = await get_snapshot(request.app).queues.get()
    return [view.to_json() for view in found if queue in (None, view.queue)]


@router.get(
    "/models",
    summary="List capabilities on offer",
    response_model=list[CapabilityOffer],
    responses=describe_errors(400, 401, 403, 429, 503),
    dependencies=[Depends(any_key)],
)
async def list_capabilities(request: Request) -> Any:
    """List the capabilities of the live seats, who serves each, and where its model is loaded. For the
    models of the model APIs, see `/v1/models`.
    """
    seats = await get_snapshot(request.app).seats.get()
    return registry.list_offers([seat for seat in seats if seat.kind != registry.ROUTER_KIND])


@router.get(
    "/quarantine",
    summary="List quarantined stages",
    response_model=list[quarantine.Quarantined],
    responses=describe_errors(400, 401, 403, 429, 503),
)
async def list_quarantined(request: Request, caller: Reader) -> Any:
    """List the stages that killed the process that ran them twice: those of your own jobs, or with the
    scope `read-all` of all jobs.
    """
    grid: GridConnection = request.app.state.grid
    found = await grid.call(quarantine.list_quarantined, grid.client.redis, grid.keys)
    return [stage for stage in found if caller.may_see(stage.agent)]


@router.post(
    "/quarantine/release",
    summary="Release a quarantined stage",
    response_model=QuarantineResult,
    responses=describe_errors(400, 401, 403, 404, 409, 429, 503),
)
async def release_quarantined(
    request: Request, body: QuarantineRequest, caller: Operator
) -> QuarantineResult:
    """Run a quarantined stage again, with its count of deaths reset. Do so once the cause is repaired."""
    return await _act(request, "release", body, caller)


@router.post(
    "/quarantine/drop",
    summary="Drop a quarantined stage",
    response_model=QuarantineResult,
    responses=describe_errors(400, 401, 403, 404, 409, 429, 503),
)
async def drop_quarantined(request: Request, body: QuarantineRequest, caller: Operator) -> QuarantineResult:
    """Give up a quarantined stage. Its job fails at once, even if a Retry encloses the stage."""
    return await _act(request, "drop", body, caller)


async def _act(
    request: Request, verb: Literal["release", "drop"], body: QuarantineRequest, caller: Caller
) -> QuarantineResult:
    grid: GridConnection = request.app.state.grid
    job = await find_job(grid, caller, body.job)
    by = f"{caller.agent} ({caller.key})" if caller.key else caller.agent
    now = await grid.call(quarantine.release_or_drop, grid.client.scripts, verb, job, body.stage, by)
    outcome: Literal["released", "dropped"] = "released" if verb == "release" else "dropped"
    return QuarantineResult(job=job, stage=str(body.stage), outcome=outcome, before=not now)
