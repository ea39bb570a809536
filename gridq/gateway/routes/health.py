"""Routes for liveness and readiness checks."""

from __future__ import annotations

import asyncio
import time
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
"""The time within which the Redis server must answer."""

RETRY_SECONDS = 2.0
"""The time after which a client should check again."""

STARTED = time.monotonic()


@router.get("/health", summary="Check liveness", response_model=Health)
async def check_health(request: Request) -> Any:
    """Return 200 at once, without asking the Redis server. It shows that the process is alive."""
    return {
        "ok": True,
        "status": "ok",
        "version": request.app.version,
        "uptime": round(time.monotonic() - STARTED, 3),
    }


@router.get(
    "/ready",
    summary="Check readiness",
    response_model=Readiness,
    responses={503: {"model": NotReady, "description": "The gateway cannot take work; `reason` says why."}},
)
async def check_readiness(request: Request) -> Response:
    """Return 200 if the gateway can take work: the Redis server answers, has memory left and holds data of
    this version, a router is live, and the gateway is not shutting down. Otherwise return 503 with the
    reason.
    """
    grid: GridConnection = request.app.state.grid
    routers: int | None = None
    error: GridError | None
    if grid.closing:
        error = errors.make_stopping_error()
    else:
        try:
            async with asyncio.timeout(SERVER_TIMEOUT_SECONDS):
                routers, error = await _check_grid(grid)
        except (TimeoutError, RedisError, OSError):  # their messages would reveal the server's address
            fix = "start the Redis server, or check the network between it and the gateway"
            error = BrokerUnreachable("The Redis server does not answer", {"fix": fix})
    if error is None:
        body = Readiness(ready=True, reason="", fix="", routers=routers)
        return JSONResponse(body.model_dump())
    error.details.setdefault("retry_after", RETRY_SECONDS)
    reason = error.message[:1].lower() + error.message[1:]
    why = NotReady(ready=False, reason=reason, routers=routers, code=error.code, **explain_refusal(error))
    return JSONResponse(why.model_dump(), 503, errors.make_headers(error, errors.get_request_id(request)))


async def _check_grid(grid: GridConnection) -> tuple[int, GridError | None]:
    """Return the number of live routers, and the error if the grid cannot take work."""
    keys = grid.keys
    pipeline = grid.redis.pipeline(transaction=False)
    pipeline.get(keys("schema"))
    pipeline.scard(keys("serving", queue_names.PURE))
    pipeline.exists(keys("memory_full"))
    data, routers, full = await pipeline.execute()
    if data is not None and int(data) != schema.SCHEMA:
        details = {
            "bottleneck": "the version of this gateway",
            "fix": "install the same version of gridq on every machine",
        }
        return routers, SchemaMismatch("The grid's data belongs to another version of gridq", details)
    if full:
        fix = "wait for jobs to end, or raise maxmemory of the Redis server"
        return routers, GridFull("The Redis server is almost out of memory", {"fix": fix})
    if not routers:
        fix = "start a router: celery -A gridq.app worker -Q gridq:router"
        return 0, NoLiveSeat("No router is live", {"queue": queue_names.PURE, "fix": fix})
    return routers, None
