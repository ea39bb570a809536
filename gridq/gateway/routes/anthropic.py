"""Routes of the Anthropic API: messages and their token count. Clients set their base URL to
`http://host:port`.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gridq.errors import InvalidField
from gridq.gateway.auth.caller import identify
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.http.request_body import read_json, read_models, run_for_body
from gridq.gateway.routes.model_api import ANTHROPIC, forward
from gridq.protocol.token_count import count_tokens

router = APIRouter(tags=["anthropic"])


@router.post("/v1/messages", summary="Create a message", response_class=Response)
async def create_message(request: Request) -> Response:
    """Create a message, whole or as a stream of events."""
    return await forward(request, ANTHROPIC, "messages")


@router.post("/v1/messages/count_tokens", summary="Count the tokens of a message", response_class=Response)
async def count_message_tokens(request: Request) -> Response:
    """Return an estimate of the tokens of a request's messages, system prompt and tools. No model is
    called.
    """
    grid: GridConnection = request.app.state.grid
    await identify(request, "submit")
    body, raw = await read_json(request.receive, grid.options.max_json_depth)
    read_models(body)
    messages = body.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            path = f"messages[{number}]"
            raise InvalidField(
                f"`{path}` is not a message",
                {"path": path, "expected": "an object with `role` and `content`"},
            )
    return JSONResponse({"input_tokens": await run_for_body(len(raw), count_tokens, body)})
