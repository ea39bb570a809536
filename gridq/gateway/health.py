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

from gridq import queues
from gridq.gateway.door import Door
from gridq.gateway.schemas import Health, Ready
from gridq.store import schema

router = APIRouter(tags=["health"])

PATIENCE = 2.0
"""Seconds within which the server must answer."""

STARTED = time.monotonic()


@cache
def program() -> str:
    """This gridq's version."""
    return version("gridq")


@router.get("/health", summary="The process lives", response_model=Health)
async def health() -> Any:
    """Always 200, at once, and without a look at the server."""
    return {"ok": True, "status": "ok", "version": program(), "uptime": round(time.monotonic() - STARTED, 3)}


@router.get(
    "/ready",
    summary="The gateway can take work",
    response_model=Ready,
    responses={503: {"model": Ready, "description": "it cannot; the reason says why"}},
)
async def ready(request: Request) -> Response:
    """200 where the server answers, its data are of this version, it has memory left, a router is live and
    the gateway does not stop; else 503 with the reason.
    """
    door: Door = request.app.state.door
    routers: int | None = None
    if door.closing:
        reason, fix = "the gateway stops", "ask another one"
    else:
        try:
            async with asyncio.timeout(PATIENCE):
                routers, reason, fix = await _look(door)
        except (TimeoutError, RedisError, OSError):  # BrokerUnreachable would tell the server's address
            reason, fix = "the server does not answer", "start it, or see to the network"
    body = Ready(ready=not reason, reason=reason, fix=fix, routers=routers).model_dump()
    headers = {"cache-control": "no-store"} | ({"retry-after": "2"} if reason else {})
    return JSONResponse(body, 503 if reason else 200, headers)


async def _look(door: Door) -> tuple[int, str, str]:
    """(live routers, why the grid cannot take work or '', what helps)."""
    keys = door.keys
    look = door.redis.pipeline(transaction=False)
    look.get(keys("schema"))
    look.scard(keys("serve", queues.PURE))
    look.exists(keys("full"))
    data, routers, full = await look.execute()
    if data is not None and int(data) != schema.SCHEMA:
        return routers, "the grid's data are of another version", "run the grid's version of gridq"
    if full:
        return routers, "the server's memory is nearly used up", "wait for jobs to end, or raise maxmemory"
    if not routers:
        return 0, "no router is live", "start one with celery -A gridq.app worker -Q gridq:router"
    return routers, "", ""
