"""Bodies that are too long, headers that are too many: refused before they are read whole."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gridq.errors import HeadersTooLarge, InputTooLarge
from gridq.gateway.http.bounds import MAX_HEADER_BYTES, MAX_HEADERS, BoundedBody, check_headers


class Sender:
    """A client that sends its parts, and counts what is asked of it."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.reads = 0

    async def __call__(self) -> Message:
        self.reads += 1
        return {"type": "http.request", "body": self.parts.pop(0), "more_body": bool(self.parts)}


async def read(body: BoundedBody) -> int:
    while (await body())["more_body"]:
        pass
    return body.size


def test_a_body_within_the_bound_is_read() -> None:
    assert asyncio.run(read(BoundedBody(Sender(b"x" * 5, b"x" * 5), 10))) == 10


def test_a_body_over_the_bound_is_not_read_to_its_end() -> None:
    sender = Sender(*[b"x" * 5] * 1000)
    with pytest.raises(InputTooLarge):
        asyncio.run(read(BoundedBody(sender, 10)))
    assert sender.reads == 3


def test_a_bound_lowered_later_applies_to_bytes_already_read() -> None:
    async def lowered() -> None:
        body = BoundedBody(Sender(b"x" * 100), 1000)
        await read(body)
        body.max_bytes = 50
        body.check()

    with pytest.raises(InputTooLarge):
        asyncio.run(lowered())


def test_too_many_or_too_large_headers_are_refused() -> None:
    check_headers([(b"a", b"b")] * MAX_HEADERS)
    with pytest.raises(HeadersTooLarge):
        check_headers([(b"a", b"b")] * (MAX_HEADERS + 1))
    with pytest.raises(HeadersTooLarge):
        check_headers([(b"a", b"b" * MAX_HEADER_BYTES)])
