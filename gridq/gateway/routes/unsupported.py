"""Routes of the OpenAI API that gridq does not serve: audio and images. They say so in the API's format."""

from __future__ import annotations

from fastapi import APIRouter, Request

from gridq.errors import NotSupported
from gridq.gateway.auth.caller import identify

router = APIRouter()


@router.post("/v1/audio/{endpoint}", include_in_schema=False)
async def refuse_audio(request: Request, endpoint: str) -> None:
    """Refuse a transcription, a translation or speech."""
    await identify(request, "submit")
    raise _make_error(f"/v1/audio/{endpoint}", "audio")


@router.post("/v1/images/{endpoint}", include_in_schema=False)
async def refuse_images(request: Request, endpoint: str) -> None:
    """Refuse to generate or edit an image."""
    await identify(request, "submit")
    raise _make_error(f"/v1/images/{endpoint}", "images")


def _make_error(path: str, what: str) -> NotSupported:
    return NotSupported(
        f"gridq does not serve {path[:200]} yet",
        {
            "reason": f"the grid serves text and embeddings; {what} are planned, without a date",
            "fix": "send this request to the vendor; chat messages may contain images and audio",
        },
    )
