"""Bodies that are too long or too slow, headers that are too many: refused before they are read whole."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gridq.errors import InputTooLarge, RequestTooSlow
from gridq.gateway.limits import HEADER_BYTES, MOST_HEADERS, BoundedBody, headers_fault


class Sender:
    """A client that sends what it is told to, and counts what is asked of it."""

    def __init__(self, *parts: bytes, ends: bool = True) -> None:
        self.parts = list(parts)
        self.ends = ends
        self.asked = 0

    async def __call__(self) -> Message:
        self.asked += 1
        if self.parts:
            part = self.parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.parts) or not self.ends}
        await asyncio.Event().wait()
        raise AssertionError


async def read(body: BoundedBody) -> int:
    while not body.whole:
        await body()
    return body.size


def test_a_body_within_the_bound_is_read() -> None:
    assert asyncio.run(read(BoundedBody(Sender(b"x" * 5, b"x" * 5), 10))) == 10


def test_what_is_over_is_not_read_to_its_end() -> None:
    sender = Sender(*[b"x" * 5] * 1000)
    with pytest.raises(InputTooLarge):
        asyncio.run(read(BoundedBody(sender, 10)))
    assert sender.asked == 3


def test_a_bound_that_is_lowered_meanwhile_holds_for_what_has_come() -> None:
    async def lowered() -> None:
        body = BoundedBody(Sender(b"x" * 100), 1000)
        await read(body)
        body.most = 50
        body.check()

    with pytest.raises(InputTooLarge):
        asyncio.run(lowered())


def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(RequestTooSlow):
        asyncio.run(read(BoundedBody(Sender(b"x", ends=False), 10, seconds=0.01)))


def test_a_reader_may_wait_for_the_end_of_the_connection_as_long_as_it_likes() -> None:
    async def wait() -> None:
        body = BoundedBody(Sender(b"x"), 10, seconds=0.01)
        await read(body)
        await asyncio.wait_for(body(), 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())


def test_headers() -> None:
    assert headers_fault([(b"a", b"b")] * MOST_HEADERS) is None
    assert headers_fault([(b"a", b"b")] * (MOST_HEADERS + 1)) is not None
    assert headers_fault([(b"a", b"b" * HEADER_BYTES)]) is not None
