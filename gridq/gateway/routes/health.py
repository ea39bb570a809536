"""Whether the gateway lives, and whether it can take work: for whoever restarts it, or sends it work."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from redis.exceptions import RedisError

from gridq.errors import BrokerUnreachable, GridError, GridFull, NoLiveSeat, SchemaMismatch
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.http import errors
from gridq.gateway.http.schemas import Health, NotReady, Readiness
from gridq.protocol import queue_names
from gridq.store import schema
from gridq.submission.refusal_details import explain_refusal

router = APIRouter(tags=["health"])

SERVER_TIMEOUT_SECONDS = 2.0
"""Seconds within which the server must answer."""

RETRY_SECONDS = 2.0
"""Seconds after which to look again."""

NO_STORE = {"cache-control": "no-store"}

STARTED = time.monotonic()


@cache
def program_version() -> str:
    """This gridq's version."""
    return version("gridq")


@router.get("/health", summary="The process lives", response_model=Health)
async def health() -> Any:
    """Always 200, at once, and without a look at the server."""
    return {"ok": True, "status": "ok", "version": program_version(), "uptime": round(time.monotonic() - STARTED, 3)}


@router.get(
    "/ready",
    summary="The gateway can take work",
    response_model=Readiness,
    responses={503: {"model": NotReady, "description": "it cannot; the reason says why"}},
)
async def has_entries(request: Request) -> Response:
    """200 where the server answers, its data are of this version, it has memory left, a router is live and
    the gateway does not stop; else 503 with the reason and what every refusal says.
    """
    grid: GridConnection = request.app.state.grid
    routers: int | None = None
    error: GridError | None
    if grid.closing:
        error = errors.gateway_stopping()
    else:
        try:
            async with asyncio.timeout(SERVER_TIMEOUT_SECONDS):
                routers, error = await _check_grid(grid)
        except (TimeoutError, RedisError, OSError):  # its own words would tell the server's address
            fix = "start it, or see to the network"
            error = BrokerUnreachable("The server does not answer", {"fix": fix})
    if error is None:
        body = Readiness(ready=True, reason="", fix="", routers=routers)
        return JSONResponse(body.model_dump(), headers=NO_STORE)
    error.details.setdefault("retry_after", RETRY_SECONDS)
    reason = error.message[:1].lower() + error.message[1:]
    why = NotReady(ready=False, reason=reason, routers=routers, code=error.code, **explain_refusal(error))
    headers = {**errors.headers_of(error, errors.request_id_of(request)), **NO_STORE}
    return JSONResponse(why.model_dump(), 503, headers)


async def _check_grid(grid: GridConnection) -> tuple[int, GridError | None]:
    """(live routers, why the grid cannot take work)."""
    keys = grid.keys
    look = grid.redis.pipeline(transaction=False)
    look.get(keys("schema"))
    look.scard(keys("serving", queue_names.PURE))
    look.exists(keys("memory_full"))
    data, routers, full = await look.execute()
    if data is not None and int(data) != schema.SCHEMA:
        about = {"bottleneck": "the version of this gateway", "fix": "run the grid's version of gridq"}
        return routers, SchemaMismatch("The grid's data are of another version", about)
    if full:
        fix = "wait for jobs to end, or raise maxmemory"
        return routers, GridFull("The server's memory is nearly used up", {"fix": fix})
    if not routers:
        fix = "start one with celery -A gridq.app worker -Q gridq:router"
        return 0, NoLiveSeat("No router is live", {"queue": queue_names.PURE, "fix": fix})
    return routers, None
