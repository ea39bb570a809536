"""`GET /metrics`: the grid and this gateway as Prometheus reads them."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from gridq.config.urls import is_loopback
from gridq.gateway.auth.caller import FORWARDED, check_local, identify
from gridq.gateway.grid.connection import Door
from gridq.gateway.http.schemas import faults
from gridq.gateway.metrics.collector import Metrics

router = APIRouter(tags=["health"])


async def observer(request: Request) -> None:
    """Who may read the metrics: whoever is at this machine, else who has a key for reading."""
    door: Door = request.app.state.door
    peer = request.client.host if request.client else ""
    if is_loopback(peer) and not any(name in request.headers for name in FORWARDED):
        check_local(request, door)
        return
    await identify(request, "read")


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "the metrics"},
        **faults(401, 403, 429, 503),
    },
    dependencies=[Depends(observer)],
)
async def metrics(request: Request) -> Response:
    """The grid and this gateway, at most a second old. From this machine without a key."""
    found: Metrics = request.app.state.metrics
    text, content_type = await found.text(request.headers.get("accept", ""))
    return Response(text, media_type=content_type)
