"""The estimated tokens of a request."""

from __future__ import annotations

import base64
import struct
import time
from typing import Any

import pytest

from gridq.errors import StageError
from gridq.protocol.token_count import (
    MAX_IMAGE_TOKENS,
    TOKENS_PER_PAGE,
    count_response_tokens,
    count_tokens,
)


def count(content: Any, **more: Any) -> int:
    return count_tokens({"messages": [{"role": "user", "content": content}], **more})


def image(raw: bytes) -> int:
    data = base64.b64encode(raw).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return count([{"type": "image", "source": source}]) - count([])


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)


def test_text_counts_by_its_length_in_every_field():
    text = "x" * 350
    assert count(text) == 104
    assert count([{"type": "text", "text": text}]) == 104
    assert count("", system=text) == count("", system=[{"type": "text", "text": text}]) == 104
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": text}]}
    assert count([result]) == 104
    assert count("", tools=[{"name": "weather", "input_schema": {"type": "object"}}]) > 14


def test_other_scripts_count_more_tokens_per_character():
    assert count("東京都庁" * 10) > count("word" * 10) * 2


def test_thinking_of_earlier_turns_is_left_out():
    assert count([{"type": "thinking", "thinking": "x" * 999, "signature": "s"}]) == count([])


@pytest.mark.parametrize(
    "raw",
    [
        png(750, 300),
        b"GIF89a" + struct.pack("<HH", 750, 300),
        b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 750, 300),
        b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + struct.pack("<I", 749 | 299 << 14),
        b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (749).to_bytes(3, "little") + (299).to_bytes(3, "little"),
        b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 300, 750) + bytes(4),
    ],
)
def test_an_image_counts_by_its_size(raw: bytes):
    assert image(raw) == 300


def test_a_large_image_is_scaled_down_and_one_that_cannot_be_read_counts_the_most():
    assert image(png(1092, 1092)) == 1590
    assert image(png(8000, 800)) == 328
    assert image(b"\xff\xd8\xff") == image(b"?") == image(png(5000, 5000)) == MAX_IMAGE_TOKENS
    url = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    assert count([url]) - count([]) == MAX_IMAGE_TOKENS


def test_a_document_counts_its_text_or_its_pages():
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x" * 350}}
    assert count([text]) - count([]) == 100
    pages = base64.b64encode(b"%PDF /Type /Pages /Type /Page /Type /Page").decode()
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": pages}}
    assert count([pdf]) - count([]) == 2 * TOKENS_PER_PAGE


@pytest.mark.parametrize("body", [None, [], {}, {"messages": "hello"}])
def test_a_body_without_messages_is_refused(body: Any):
    with pytest.raises(StageError) as caught:
        count_tokens(body)
    assert caught.value.path == "messages"
    assert caught.value.details["status"] == 400


@pytest.mark.parametrize(
    "content", [None, 3, [None, 3], [{"type": "image"}], [{"type": "document", "source": 3}], [{}]]
)
def test_malformed_content_is_counted(content: Any):
    assert count(content) >= 1


def test_a_request_of_responses_counts_as_much_as_the_same_messages():
    text = "x" * 350
    assert count_response_tokens({"input": text}) == 100
    assert count_response_tokens({"input": "", "instructions": text}) == 100
    parts = [{"type": "input_text", "text": text}]
    assert count_response_tokens({"input": [{"role": "user", "content": parts}]}) == count(text)
    call = {"type": "function_call", "call_id": "c", "name": "", "arguments": text}
    output = {"type": "function_call_output", "call_id": "c", "output": text}
    assert count_response_tokens({"input": [call, output]}) == 208
    url = "data:image/png;base64," + base64.b64encode(png(750, 100)).decode()
    image_item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    assert count_response_tokens({"input": [image_item]}) == 104
    assert count_response_tokens({"input": [{"type": "reasoning", "encrypted_content": text}]}) == 4
    assert count_response_tokens({"input": "", "tools": [{"type": "function", "name": text}]}) > 100
    assert count_response_tokens({"input": [None, 3], "text": 3}) > 0


def test_a_picture_of_many_segments_is_not_walked_to_its_end() -> None:
    data = base64.b64encode(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 5_000_000).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": data}}
    begun = time.thread_time()
    assert count_tokens({"messages": [{"role": "user", "content": [image]}]}) >= 1600
    assert time.thread_time() - begun < 1.0
