"""One read for all who ask at once, and again once it is too old."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from gridq.store.ttl_cache import TtlCache


class Source:
    """Numbers its reads; a read waits for `go_on`, and fails while `error` is set."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self) -> int:
        self.reads += 1
        self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        return self.reads


def test_an_expired_value_is_read_again() -> None:
    cache, source = TtlCache[int](60.0), Source()
    assert not cache.is_fresh()
    assert [cache.get(source) for _ in range(3)] == [1, 1, 1]
    assert cache.is_fresh()
    cache.ttl = 0.0
    assert cache.get(source) == 2


def test_forget_reads_again() -> None:
    cache, source = TtlCache[int](60.0), Source()
    cache.get(source)
    cache.forget()
    assert not cache.is_fresh()
    assert cache.get(source) == 2


def test_threads_share_one_read_and_its_failure() -> None:
    cache, source = TtlCache[int](0.0), Source()
    source.go_on.clear()
    source.error = OSError("away")

    def ask(_: int) -> str:
        with pytest.raises(OSError, match="away") as caught:
            cache.get(source)
        return str(caught.value)

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(ask, number) for number in range(4)]
        threading.Timer(0.2, source.go_on.set).start()
        assert [each.result(10) for each in readers] == ["away"] * 4
    assert source.reads == 1
    source.error = None
    assert cache.get(source) == 2, "a failure is not kept"


def counting(values: list[int], gate: asyncio.Event) -> Callable[[], Awaitable[int]]:
    async def read() -> int:
        values.append(len(values) + 1)
        await gate.wait()
        return values[-1]

    return read


def test_tasks_share_one_read_that_outlives_a_cancelled_one() -> None:
    async def run() -> None:
        cache = TtlCache[int](60.0)
        values: list[int] = []
        gate = asyncio.Event()
        read = counting(values, gate)
        first, second = (asyncio.create_task(cache.get_async(read)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await second == 1
        assert first.cancelled()
        assert await cache.get_async(read) == 1
        cache.forget()
        assert await cache.get_async(read) == 2

    asyncio.run(run())


def test_a_failed_read_fails_for_all_its_tasks_and_is_tried_again() -> None:
    async def run() -> None:
        cache = TtlCache[int](60.0)

        async def fail() -> int:
            await asyncio.sleep(0)
            raise OSError("away")

        found = await asyncio.gather(*(cache.get_async(fail) for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in found] == ["away"] * 3
        gate = asyncio.Event()
        gate.set()
        assert await cache.get_async(counting([], gate)) == 1

    asyncio.run(run())
