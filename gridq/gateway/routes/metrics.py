"""`GET /metrics`: the metrics of the grid and of this gateway, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from gridq.config.urls import is_loopback
from gridq.gateway.auth.caller import FORWARDING_HEADERS, check_local, identify
from gridq.gateway.http.schemas import describe_errors
from gridq.gateway.metrics.collector import MetricsCollector

router = APIRouter(tags=["health"])


async def require_reader(request: Request) -> None:
    """Allow requests from this machine, and callers with a key of the scope `read`."""
    peer = request.client.host if request.client else ""
    if is_loopback(peer) and not any(name in request.headers for name in FORWARDING_HEADERS):
        check_local(request)
        return
    await identify(request, "read")


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The metrics."},
        **describe_errors(401, 403, 429, 503),
    },
    dependencies=[Depends(require_reader)],
)
async def read_metrics(request: Request) -> Response:
    """Return the metrics of the grid and of this gateway, at most a second old. Requests from this machine
    need no key.
    """
    found: MetricsCollector = request.app.state.metrics
    text, content_type = await found.text(request.headers.get("accept", ""))
    return Response(text, media_type=content_type)
