"""The OpenAI-shaped wire: chat, completions, embeddings and the list of models, over HTTP.

One background event loop carries all calls of a wire, so that a call can be dropped at any point (while
connecting, while waiting, in the middle of a stream) by cancelling it, and connections are kept for the next
call. The caller's own thread reads the pieces.

What an answer's status means is in `fault_of`; the key never stands in an error or a log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

import httpx

from gridq.errors import (
    GridError,
    SeatDegraded,
    SeatUnavailable,
    StageError,
    StageTimeout,
    StreamCut,
)
from gridq.profiles import StageContext
from gridq.protocol import Json
from workers.wires.faults import NOT_REACHED, fault_in_stream, fault_of
from workers.wires.sse import EventStream, EventTooLong
from workers.wires.stages import Answer, Endpoint, Request, embedding_usage, vectors

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 300.0
"""How long an endpoint may send nothing. A long prompt on a slow engine is silent for minutes before its
first piece.
"""

MAX_ANSWER = 64 * 1024 * 1024
"""An endpoint that sends more than this for one call is broken."""

DONE = "[DONE]"
DRAIN_SECONDS = 0.1

_END = object()


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read the end of a body that has said all, so that its connection can be kept."""
    with contextlib.suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in chunks:
                pass


class OpenAIWire:
    """The calls to one endpoint. Safe to use from several threads; `close` drops what is under way."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        """`url` is the base, `https://host/v1`; `silence` the longest time without a byte, in seconds."""
        self.url = url.rstrip("/")
        self._key = key
        self._headers = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
        self._timeout = httpx.Timeout(silence, connect=min(CONNECT_SECONDS, silence))
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None

    def run(self, asked: Request, model: str, context: StageContext) -> Json:
        """Make the call, hand the pieces to `context` where somebody reads them, return the stage's output.

        Usage is reported to `context` as it becomes known.
        StageError, SeatError: see `faults`. StreamCut: it broke off after a piece was handed on.
        """
        body = {**asked.body, "model": model}
        if asked.endpoint is Endpoint.EMBEDDINGS:
            response = self.post(asked.endpoint, body, context)
            context.report(embedding_usage(response))
            try:
                return vectors(response, isinstance(body["input"], str))
            except (KeyError, TypeError, IndexError):
                raise self._malformed("its answer has no embeddings") from None
        answer = Answer()
        if not context.streaming:
            answer.add(self.post(asked.endpoint, body, context))
            if answer.finish_reason is None and not answer.message["content"]:
                raise self._malformed("its answer has no choices")
            context.report(answer.spent())
            return answer.output(asked.implementation)
        try:
            with contextlib.closing(self.stream(asked.endpoint, body, context)) as chunks:
                for chunk in chunks:
                    fault = fault_in_stream(chunk, self._key)
                    if fault is not None:
                        raise fault
                    text = answer.add(chunk)
                    context.report(answer.spent())
                    if text:
                        context.emit(text)
            if answer.finish_reason is None:
                raise SeatUnavailable(
                    "The endpoint ended its stream before its answer was complete", self._where()
                )
        except (SeatUnavailable, SeatDegraded) as exc:
            if answer.pieces:
                raise StreamCut(
                    "The endpoint's stream broke off after its first piece",
                    {**exc.details, "reason": str(exc)},
                ) from exc
            raise
        return answer.output(asked.implementation)

    def models(self, seconds: float) -> list[str]:
        """The names of the models the endpoint lists, asked for `seconds` at most."""
        context = StageContext(deadline=time.monotonic() + seconds)
        listed = self._call(self._whole("GET", "models", None), context)
        data = listed.get("data")
        if not isinstance(data, list):
            raise self._malformed("it lists no models")
        return [item["id"] for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """One call, one answer: the JSON object the endpoint returns."""
        return self._call(self._whole("POST", path, body), context)

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """One call, its answer as the JSON objects of its events, each as it comes."""
        pieces: queue.SimpleQueue[Any] = queue.SimpleQueue()
        wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}

        async def feed() -> None:
            async for event in self._events(path, wanted):
                pieces.put(event)

        future = self._submit(feed(), context)
        future.add_done_callback(lambda _: pieces.put(_END))
        try:
            while True:
                piece = pieces.get()
                if piece is _END:
                    break
                context.check()
                yield self._object(piece)
        finally:
            future.cancel()
        self._outcome(future, context)

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            client, self._client = self._client, None
        if loop is None or client is None:
            return

        async def finish() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)  # let the cancelled calls give their connections back first
            await client.aclose()

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(finish(), loop).result(2)
        loop.call_soon_threadsafe(loop.stop)

    def _call(self, coroutine: Any, context: StageContext) -> dict[str, Json]:
        future = self._submit(coroutine, context)
        concurrent.futures.wait([future])
        answer: dict[str, Json] = self._outcome(future, context)
        return answer

    def _submit(self, coroutine: Any, context: StageContext) -> concurrent.futures.Future[Any]:
        loop = self._running()

        async def bounded() -> Any:
            left = None if context.deadline is None else context.deadline - time.monotonic()
            async with asyncio.timeout(left):
                return await coroutine

        future = asyncio.run_coroutine_threadsafe(bounded(), loop)

        def drop() -> None:
            future.cancel()

        context.on_cancel(drop)
        return future

    def _outcome(self, future: concurrent.futures.Future[Any], context: StageContext) -> Any:
        context.check()
        try:
            return future.result(0)
        except concurrent.futures.CancelledError:
            raise SeatUnavailable("The wire was closed while a call was under way", self._where()) from None
        except TimeoutError:
            raise StageTimeout("The model did not answer within the stage's time", self._where()) from None
        except GridError:
            raise
        except httpx.TimeoutException:
            raise SeatUnavailable("The endpoint did not answer in time", self._where()) from None
        except NOT_REACHED as exc:
            raise SeatUnavailable(
                "The endpoint cannot be reached or broke the connection",
                {**self._where(), "reason": f"{type(exc).__name__}: {exc}"},
            ) from None
        except EventTooLong as exc:
            raise self._malformed(str(exc)) from None
        except (TypeError, ValueError) as exc:
            raise StageError("The request cannot be sent", {"reason": str(exc)}) from None

    async def _whole(self, method: str, path: str, body: dict[str, Json] | None) -> dict[str, Json]:
        assert self._client is not None
        async with self._client.stream(method, f"{self.url}/{path}", json=body) as response:
            raw = await self._read(response)
            if response.status_code != httpx.codes.OK:
                raise fault_of(response.status_code, response.headers, raw, self._where(), self._key)
        return self._object(raw.decode("utf-8", "replace"))

    async def _events(self, path: str, body: dict[str, Json]) -> AsyncIterator[str]:
        assert self._client is not None
        events = EventStream()
        async with self._client.stream("POST", f"{self.url}/{path}", json=body) as response:
            if response.status_code != httpx.codes.OK:
                raw = await self._read(response)
                raise fault_of(response.status_code, response.headers, raw, self._where(), self._key)
            if "text/event-stream" not in response.headers.get("content-type", "text/event-stream"):
                yield (await self._read(response)).decode("utf-8", "replace")  # it answered whole, unasked
                return
            chunks = response.aiter_bytes()
            async for chunk in chunks:
                for event in events.feed(chunk):
                    if event.strip() == DONE:
                        await _drain(chunks)
                        return
                    yield event
            for event in events.end():
                if event.strip() != DONE:
                    yield event

    async def _read(self, response: httpx.Response) -> bytes:
        raw = bytearray()
        async for chunk in response.aiter_bytes():
            raw += chunk
            if len(raw) > MAX_ANSWER:
                raise self._malformed(f"its answer is longer than {MAX_ANSWER} bytes")
        return bytes(raw)

    def _object(self, text: str) -> dict[str, Json]:
        try:
            found = json.loads(text)
        except ValueError:
            raise self._malformed("it sent something that is not JSON") from None
        if not isinstance(found, dict):
            raise self._malformed("it sent JSON that is not an object")
        return found

    def _malformed(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(
            "The endpoint does not speak the OpenAI wire",
            {**self._where(), "reason": reason, "fix": "check the seat's url: it usually ends in /v1"},
        )

    def _where(self) -> dict[str, Json]:
        return {"endpoint": self.url}

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                started = threading.Event()
                threading.Thread(
                    target=self._serve, args=(loop, started), name="gridq-wire", daemon=True
                ).start()
                started.wait()
                self._loop = loop
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        self._client = httpx.AsyncClient(
            headers=self._headers,
            timeout=self._timeout,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30),
        )
        started.set()
        try:
            loop.run_forever()
        finally:
            loop.close()
