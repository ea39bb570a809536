"""Anthropic's API: messages, and the count of their tokens. Clients set their base URL to
`http://host:port`.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gridq.gateway.auth.caller import identify
from gridq.gateway.grid.connection import Door
from gridq.gateway.http.request_body import models_of, parse_body, read_body
from gridq.gateway.routes.model_api import ANTHROPIC, begin
from gridq.protocol.token_count import count_tokens

router = APIRouter(tags=["anthropic"])


@router.post("/v1/messages", response_class=Response)
async def messages(request: Request) -> Response:
    """Continue a conversation, whole or as a stream of events."""
    return await begin(request, ANTHROPIC, "messages")


@router.post("/v1/messages/count_tokens", response_class=Response)
async def count(request: Request) -> Response:
    """An estimate of the tokens of a request's messages, system prompt and tools; nothing is asked of a
    model.
    """
    door: Door = request.app.state.door
    await identify(request, "submit")
    raw = await read_body(request.receive)
    body = parse_body(raw, door.options.max_json_depth)
    models_of(body)
    return JSONResponse({"input_tokens": count_tokens(body)})
