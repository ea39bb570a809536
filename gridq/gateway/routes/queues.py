"""What waits where, what can be asked for, and the stages in quarantine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from gridq.gateway.auth.caller import Caller
from gridq.gateway.grid.connection import Door
from gridq.gateway.grid.snapshot import glance_of
from gridq.gateway.http.schemas import Offer, QuarantineAct, QuarantineOutcome, Queue, faults
from gridq.gateway.routes.jobs import Reader, find
from gridq.gateway.routes.workers import Operator, anybody
from gridq.seats import registry
from gridq.views import quarantine

router = APIRouter(tags=["queues"])


@router.get(
    "/queues",
    summary="What waits for which capability",
    response_model=list[Queue],
    responses=faults(400, 401, 403, 429, 503),
    dependencies=[Depends(anybody)],
)
async def queues(
    request: Request,
    *,
    queue: Annotated[str | None, Query(description="this one alone, such as llm:any")] = None,
) -> Any:
    """Each capability's queue that holds something or that a live seat serves, the routers' first. At most a
    second old.
    """
    found = await glance_of(request.app).queues.get()
    return [view.to_json() for view in found if queue in (None, view.queue)]


@router.get(
    "/models",
    summary="What a stage can ask for now",
    response_model=list[Offer],
    responses=faults(400, 401, 403, 429, 503),
    dependencies=[Depends(anybody)],
)
async def models(request: Request) -> Any:
    """Each capability of the live seats, who serves it, and where its model is loaded. `/v1/models` lists
    those that the model APIs can ask for, as their clients read it.
    """
    seats = await glance_of(request.app).seats.get()
    return registry.offers_of([seat for seat in seats if seat.kind != registry.ROUTER_KIND])


@router.get(
    "/quarantine",
    summary="Stages in quarantine",
    response_model=list[quarantine.Quarantined],
    responses=faults(400, 401, 403, 429, 503),
)
async def quarantined(request: Request, caller: Reader) -> Any:
    """The stages that killed the process that ran them twice: of one's own jobs, or with the scope `read-all`
    of all.
    """
    door: Door = request.app.state.door
    found = await door.call(quarantine.listing, door.client.redis, door.keys)
    return [stage for stage in found if caller.may_see(stage.agent)]


@router.post(
    "/quarantine/release",
    summary="Run a stage in quarantine again",
    response_model=QuarantineOutcome,
    responses=faults(400, 401, 403, 404, 409, 429, 503),
)
async def release(request: Request, about: QuarantineAct, caller: Operator) -> QuarantineOutcome:
    """As if it had killed nobody yet: once its cause is mended."""
    return await _act(request, "release", about, caller)


@router.post(
    "/quarantine/drop",
    summary="Give a stage in quarantine up",
    response_model=QuarantineOutcome,
    responses=faults(400, 401, 403, 404, 409, 429, 503),
)
async def drop(request: Request, about: QuarantineAct, caller: Operator) -> QuarantineOutcome:
    """Its job fails at once, whatever Retry stands around the stage."""
    return await _act(request, "drop", about, caller)


async def _act(
    request: Request, verb: Literal["release", "drop"], about: QuarantineAct, caller: Caller
) -> QuarantineOutcome:
    door: Door = request.app.state.door
    job = await find(door, caller, about.job)
    by = f"{caller.agent} ({caller.key})" if caller.key else caller.agent
    now = await door.call(quarantine.act, door.client.scripts, verb, job, about.stage, by)
    outcome: Literal["released", "dropped"] = "released" if verb == "release" else "dropped"
    return QuarantineOutcome(job=job, stage=str(about.stage), outcome=outcome, before=not now)
