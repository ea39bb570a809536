"""Estimate the tokens of a request of Anthropic's Messages or OpenAI's Responses, without calling a model.

The rules of thumb are the vendor's: a token is about 3.5 characters of English (here bytes of UTF-8, because
other scripts have more tokens per character); an image is its width times its height divided by 750, scaled
to at most 1,568 pixels a side; a page of a PDF is 1,500 to 3,000 tokens. The tokenizer of the model that
answers may differ by about a fifth.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct

from gridq.errors import StageError
from gridq.protocol.models import Json

BYTES_PER_TOKEN = 3.5
TOKENS_PER_MESSAGE = 4
"""The tokens of a message's role and delimiters, in addition to its text."""

PIXELS_PER_TOKEN = 750
MAX_SIDE_PIXELS = 1568
MAX_IMAGE_TOKENS = 1600
"""The tokens of an image that was scaled down, or that is only given by its URL."""

TOKENS_PER_PAGE = 2250

IMAGE_HEAD_CHARACTERS = 512 * 1024
"""The part of an image's base64 that is searched for its size."""


def count_tokens(body: Json) -> int:
    """Return the tokens of `messages`, `system` and `tools` in a request to /v1/messages, at least 1.

    Raises StageError (details.status 400) if the request has no list of messages; nothing else is checked.
    """
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        raise StageError(
            "The request has no messages to count",
            {"path": "messages", "param": "messages", "expected": "a list of messages", "status": 400},
        )
    tokens = _count_content(body.get("system"))
    for message in messages:
        tokens += TOKENS_PER_MESSAGE + _count_content(
            message.get("content") if isinstance(message, dict) else message
        )
    for part in ("tools", "tool_choice"):
        if body.get(part):
            tokens += _count_text(json.dumps(body[part], ensure_ascii=False, separators=(",", ":")))
    return max(1, math.ceil(tokens))


def count_response_tokens(body: dict[str, Json]) -> int:
    """Return the tokens of `input`, `instructions`, `tools` and the answer's schema in a request to
    /v1/responses, at least 1. Nothing is checked.
    """
    items = body.get("input")
    tokens = _count_content(body.get("instructions")) + (
        _count_content(items) if isinstance(items, str) else 0
    )
    for item in items if isinstance(items, list) else ():
        tokens += TOKENS_PER_MESSAGE + _count_item(item)
    text = body.get("text")
    schema = text.get("format") if isinstance(text, dict) else None
    for part in (body.get("tools"), body.get("tool_choice"), schema):
        if part:
            tokens += _count_text(json.dumps(part, ensure_ascii=False, separators=(",", ":")))
    return max(1, math.ceil(tokens))


def _count_item(item: Json) -> float:
    """Return the tokens of a message, a tool call or its output; none for reasoning, as for Messages."""
    if not isinstance(item, dict) or item.get("type") == "reasoning":
        return 0
    names = ("content", "output", "name", "arguments", "input")
    return sum(_count_content(item.get(name)) for name in names)


def _count_text(text: str) -> float:
    return len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN


def _count_content(content: Json) -> float:
    """Return the tokens of a text, a block, or a list of them."""
    if isinstance(content, str):
        return _count_text(content)
    if isinstance(content, list):
        return sum(map(_count_content, content))
    if not isinstance(content, dict):
        return 0
    match content.get("type"):
        case "text" | "input_text" | "output_text":
            return _count_content(content.get("text"))
        case "input_image":
            return _count_image(_make_source(content.get("image_url")))
        case "input_file":
            return _count_document(
                {"title": content.get("filename"), "source": _make_source(content.get("file_data"))}
            )
        case "image":
            return _count_image(content.get("source"))
        case "document":
            return _count_document(content)
        case "tool_result":
            return _count_content(content.get("content"))
        case "tool_use":
            call = json.dumps(content.get("input"), ensure_ascii=False, separators=(",", ":"))
            return _count_content(content.get("name")) + _count_text(call)
        case "thinking" | "redacted_thinking":
            return 0  # the vendor does not count the thinking of earlier turns
    return _count_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")))


def _make_source(url: Json) -> dict[str, Json]:
    """Return the source of a data URL as in Messages; without data for any other."""
    return {"data": url.partition(";base64,")[2] if isinstance(url, str) else None}


def _count_document(block: dict[str, Json]) -> float:
    tokens = _count_content(block.get("title")) + _count_content(block.get("context"))
    source = block.get("source")
    if not isinstance(source, dict):
        return tokens
    if source.get("type") == "text":
        return tokens + _count_content(source.get("data"))
    if source.get("type") == "content":
        return tokens + _count_content(source.get("content"))
    data = _decode_data(source)
    pages = data.count(b"/Type /Page") - data.count(b"/Type /Pages")
    return tokens + max(1, pages) * TOKENS_PER_PAGE


def _count_image(source: Json) -> float:
    size = _read_image_size(_decode_head(source)) if isinstance(source, dict) else None
    if size is None:
        return MAX_IMAGE_TOKENS
    scale = min(1.0, MAX_SIDE_PIXELS / max(1, *size))
    return min(MAX_IMAGE_TOKENS, size[0] * scale * size[1] * scale / PIXELS_PER_TOKEN)


def _decode_data(source: dict[str, Json]) -> bytes:
    """Return the bytes of a base64 source; b"" if it has none, or they cannot be decoded."""
    data = source.get("data")
    if not isinstance(data, str):
        return b""
    try:
        return base64.b64decode(data)
    except (binascii.Error, ValueError):
        return b""


def _decode_head(source: dict[str, Json]) -> bytes:
    """Return the first bytes of a base64 source: an image states its size there, behind few segments."""
    data = source.get("data")
    head = "".join(data[:IMAGE_HEAD_CHARACTERS].split()) if isinstance(data, str) else ""
    return _decode_data({"data": head[: len(head) // 4 * 4]})


def _read_image_size(image: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels from the header of a PNG, GIF, WebP or JPEG; None for other data."""
    try:
        if image.startswith(b"\x89PNG\r\n\x1a\n"):
            return struct.unpack(">II", image[16:24])
        if image.startswith((b"GIF87a", b"GIF89a")):
            return struct.unpack("<HH", image[6:10])
        if image.startswith(b"RIFF") and image[8:12] == b"WEBP":
            return _read_webp_size(image)
        if image.startswith(b"\xff\xd8"):
            return _read_jpeg_size(image)
    except (struct.error, IndexError):
        pass
    return None


def _read_webp_size(image: bytes) -> tuple[int, int] | None:
    """Return the size from a WebP container: the header of a VP8 or VP8L frame, or the VP8X canvas."""
    match image[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", image[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack("<I", image[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return 1 + int.from_bytes(image[24:27], "little"), 1 + int.from_bytes(image[27:30], "little")
    return None


def _read_jpeg_size(image: bytes) -> tuple[int, int] | None:
    """Return the size from the first start-of-frame segment (ITU-T T.81, table B.1: C0-CF but C4, C8, CC)."""
    at = 2
    while at < len(image):
        marker = image[at + 1]
        if image[at] != 0xFF:
            return None
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", image[at + 5 : at + 9])
            return width, height
        (length,) = struct.unpack(">H", image[at + 2 : at + 4])
        at += 2 + length
    return None
