"""Routes of the OpenAI API: chat and text completions, embeddings and models.

Clients set their base URL to `http://host:port/v1`. Fields that gridq does not know pass through to the
model's endpoint, and back.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from gridq.errors import NoLiveSeat, RouteNotFound
from gridq.gateway.auth.caller import identify
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.models import find_closest
from gridq.gateway.grid.snapshot import get_snapshot
from gridq.gateway.routes.model_api import OPENAI, forward
from gridq.protocol.queue_names import LLM, format_queue, make_queue_name

router = APIRouter(tags=["openai"])


@router.post("/v1/chat/completions", summary="Create a chat completion", response_class=Response)
async def create_chat_completion(request: Request) -> Response:
    """Create a chat completion, whole or as a stream of chunks."""
    return await forward(request, OPENAI, "chat/completions")


@router.post("/v1/completions", summary="Create a completion", response_class=Response)
async def create_completion(request: Request) -> Response:
    """Create a text completion, whole or as a stream."""
    return await forward(request, OPENAI, "completions")


@router.post("/v1/embeddings", summary="Create embeddings", response_class=Response)
async def create_embeddings(request: Request) -> Response:
    """Create an embedding of each input."""
    return await forward(request, OPENAI, "embeddings")


@router.get("/v1/models", summary="List models", response_class=Response)
async def list_models(request: Request) -> Response:
    """List the models of the live seats, their families, the names that stand for them, and `any`."""
    await identify(request, "read")
    data = list((await get_snapshot(request.app).models.get()).records.values())
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})


@router.get("/v1/models/{name:path}", summary="Read a model", response_class=Response)
async def read_model(
    request: Request,
    name: Annotated[str, Path(description="A model, a family, an alias, or `any`.")],
) -> Response:
    """Read one model. Its name may contain slashes."""
    grid: GridConnection = request.app.state.grid
    await identify(request, "read")
    offered = await get_snapshot(request.app).models.get()
    found = offered.find(name)
    if found is None:
        queue = make_queue_name(LLM, name)
        if await grid.admission_wait.may_exist(queue):
            raise NoLiveSeat(f"No live seat serves {format_queue(queue)}", {"path": "model", "queue": queue})
        close = find_closest(name, offered.records)
        raise RouteNotFound(
            f"No live seat offers the model {name[:200]!r}",
            {
                "path": "model",
                "reason": "similar: " + ", ".join(close) if close else "no model is on offer",
            },
        )
    return JSONResponse(found)
