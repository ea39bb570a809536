"""OpenAI's API: chat and text completions, embeddings and the list of models.

Clients set their base URL to `http://host:port/v1`. What the grid does not know passes through to the model's
endpoint, and back.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gridq.errors import RouteNotFound
from gridq.gateway.auth.caller import identify
from gridq.gateway.grid.models import near
from gridq.gateway.grid.snapshot import glance_of
from gridq.gateway.routes.model_api import OPENAI, begin

router = APIRouter(tags=["openai"])


@router.post("/v1/chat/completions", response_class=Response)
async def chat_completions(request: Request) -> Response:
    """Continue a conversation, whole or as a stream of chunks."""
    return await begin(request, OPENAI, "chat/completions")


@router.post("/v1/completions", response_class=Response)
async def completions(request: Request) -> Response:
    """Continue a text, whole or as a stream."""
    return await begin(request, OPENAI, "completions")


@router.post("/v1/embeddings", response_class=Response)
async def embeddings(request: Request) -> Response:
    """Embed a text, or each of several."""
    return await begin(request, OPENAI, "embeddings")


@router.get("/v1/models", response_class=Response)
async def models(request: Request) -> Response:
    """Every model that a live seat offers, every family that one declares, and `any`."""
    await identify(request, "read")
    data = list((await glance_of(request.app).models.get()).values())
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})


@router.get("/v1/models/{name:path}", response_class=Response)
async def model(request: Request, name: str) -> Response:
    """One model. A name may hold slashes."""
    await identify(request, "read")
    offered = await glance_of(request.app).models.get()
    found = offered.get(name)
    if found is None:
        close = near(name, offered)
        raise RouteNotFound(
            f"Nobody offers the model {name[:200]!r} now",
            {
                "path": "model",
                "reason": "the closest are " + ", ".join(close) if close else "nobody offers any",
            },
        )
    return JSONResponse(found)
