"""Bodies that are too long, headers that are too many: refused before they are read whole."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gridq.errors import GatewayBusy, HeadersTooLarge, InputTooLarge
from gridq.gateway.http.body_memory import LARGE_BODY_BYTES, BodyMemory
from gridq.gateway.http.bounds import MAX_HEADER_BYTES, MAX_HEADERS, BodyLimit, BoundedBody, check_headers


class Sender:
    """A client that sends its parts, and counts what is asked of it."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.reads = 0

    async def __call__(self) -> Message:
        self.reads += 1
        return {"type": "http.request", "body": self.parts.pop(0), "more_body": bool(self.parts)}


def bound(
    sender: Sender,
    max_bytes: int,
    length: int | None = None,
    *,
    memory: BodyMemory | None = None,
    server: BodyLimit | None = None,
) -> BoundedBody:
    async def read_server_limit() -> BodyLimit | None:
        return server

    limit = BodyLimit(max_bytes, "the gateway")
    return BoundedBody(sender, limit, memory or BodyMemory(2**30), read_server_limit, length)


async def read(body: BoundedBody) -> int:
    while (await body())["more_body"]:
        pass
    return body.size


def test_a_body_within_the_bound_is_read() -> None:
    assert asyncio.run(read(bound(Sender(b"x" * 5, b"x" * 5), 10))) == 10


def test_a_body_over_the_bound_is_not_read_to_its_end() -> None:
    sender = Sender(*[b"x" * 5] * 1000)
    with pytest.raises(InputTooLarge):
        asyncio.run(read(bound(sender, 10)))
    assert sender.reads == 3


def test_a_bound_lowered_later_applies_to_bytes_already_read() -> None:
    async def lowered() -> None:
        body = bound(Sender(b"x" * 100), 1000)
        await read(body)
        body.lower(BodyLimit(50, "a key"))

    with pytest.raises(InputTooLarge) as caught:
        asyncio.run(lowered())
    assert caught.value.details["limited_by"] == "a key"


def test_a_stated_length_over_a_limit_is_refused_before_a_byte_is_read() -> None:
    sender = Sender(b"x")
    with pytest.raises(InputTooLarge):
        bound(sender, 10, 11).check()
    with pytest.raises(InputTooLarge) as caught:
        asyncio.run(read(bound(sender, 2**30, 2**20, server=BodyLimit(2**19, "maxmemory"))))
    assert caught.value.details["limited_by"] == "maxmemory"
    assert sender.reads == 0


@pytest.mark.parametrize("length", [None, 4 * LARGE_BODY_BYTES])
def test_a_large_body_reserves_memory_until_it_is_released(length: int | None) -> None:
    async def run() -> None:
        memory = BodyMemory(2**30)
        body = bound(Sender(*[b"x" * LARGE_BODY_BYTES] * 4), 2**23, length, memory=memory)
        await read(body)
        assert memory.reserved == (length or 2**23)
        body.release()
        body.release()
        assert memory.reserved == 0
        body._receive = Sender(b"")
        await body()  # the watch for a disconnect
        assert memory.reserved == 0

    asyncio.run(run())


def test_a_small_body_reserves_nothing() -> None:
    async def run() -> None:
        memory = BodyMemory(2**30)
        await memory.reserve(2**30)
        await read(bound(Sender(b"x" * LARGE_BODY_BYTES), 2**23, LARGE_BODY_BYTES, memory=memory))
        await read(bound(Sender(b"x" * LARGE_BODY_BYTES), 2**23, memory=memory))
        assert memory.reserved == 2**30

    asyncio.run(run())


def test_bodies_wait_for_room_in_the_order_they_came() -> None:
    async def run() -> None:
        memory, order = BodyMemory(100), []

        async def take(name: str, size: int) -> None:
            await memory.reserve(size)
            order.append(name)

        await take("a", 60)
        waiting = [asyncio.ensure_future(take(name, size)) for name, size in (("b", 50), ("c", 10))]
        await asyncio.sleep(0)
        assert order == ["a"], "the small one does not overtake"
        memory.release(60)
        await asyncio.gather(*waiting)
        assert order == ["a", "b", "c"]
        memory.release(60)
        await take("larger than the memory", 500)
        assert memory.reserved == 500
        memory.release(500)

    asyncio.run(run())


@pytest.mark.parametrize("ready", [False, True])
def test_who_gives_up_or_goes_away_holds_nothing(ready: bool) -> None:
    async def run() -> None:
        memory = BodyMemory(100, wait=0.05)
        await memory.reserve(100)
        with pytest.raises(GatewayBusy) as caught:
            await memory.reserve(1)
        assert caught.value.details["retry_after"]
        away = asyncio.ensure_future(memory.reserve(30))
        await asyncio.sleep(0)
        behind = asyncio.ensure_future(memory.reserve(20))
        await asyncio.sleep(0)
        if ready:  # the room comes in the same moment
            memory.release(100)
        away.cancel()
        with pytest.raises(asyncio.CancelledError):
            await away
        if not ready:
            memory.release(100)
        await behind
        assert memory.reserved == 20

    asyncio.run(run())


def test_a_limit_of_the_server_bounds_the_memory() -> None:
    memory = BodyMemory(100)
    memory.limit_to(40)
    assert memory.max_bytes == 40
    memory.limit_to(1000)
    assert memory.max_bytes == 100


def test_too_many_or_too_large_headers_are_refused() -> None:
    check_headers([(b"a", b"b")] * MAX_HEADERS)
    with pytest.raises(HeadersTooLarge):
        check_headers([(b"a", b"b")] * (MAX_HEADERS + 1))
    with pytest.raises(HeadersTooLarge):
        check_headers([(b"a", b"b" * MAX_HEADER_BYTES)])
