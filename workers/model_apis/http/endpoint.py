"""A seat's endpoint, whatever API format it speaks: one call, its answer whole or as a stream of JSON objects.

The caller's own thread makes the call and reads the pieces; a call can be dropped at any point. The key never
stands in an error or a log.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import ClassVar

from gridq.errors import GridError, SeatUnavailable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.http.connections import Call, Connections, Dropped
from workers.model_apis.http.failures import fault_of, fault_within
from workers.model_apis.http.sse import EventStream, EventTooLong

SILENCE_SECONDS = 300.0
"""How long an endpoint may send nothing. A long prompt on a slow engine is silent for minutes before its
first piece.
"""

MAX_ANSWER = 64 * 1024 * 1024
"""An endpoint that sends more than this for one call is broken."""

DRAIN_SECONDS = 0.1
"""How long the end of a stream that has said all is waited for, so that its connection can be kept."""

LUMP = 256 * 1024
OK = 200

Key = str | Callable[[], str | None] | None
"""A key, or who tells it for each call."""


class EndpointApi(ABC):
    """The calls to one endpoint. Safe to use from several threads; `close` drops what is under way."""

    api: ClassVar[str]
    name: ClassVar[str]
    listing: ClassVar[str] = "models"
    ending: ClassVar[str] = "/v1"
    """What the URL of its vendor's own endpoint ends in."""

    asks: ClassVar[dict[str, str]] = {}
    """Headers of every request, unless the seat's own say otherwise."""

    def __init__(
        self,
        url: str,
        key: Key = None,
        *,
        headers: dict[str, str] | None = None,
        silence: float = SILENCE_SECONDS,
        key_header: str | None = None,
        query: str = "",
        usage_unrequested: bool = False,
    ) -> None:
        """`url` is the base, `https://host/v1`; `silence` the longest time without a byte, in seconds.
        `key_header`: where the key goes, if not where its API format says; `query`: what every path ends in;
        `usage_unasked`: a stream says what it used without being asked, and being asked is an error.
        """
        self.url = url.rstrip("/")
        self._ask_key: Callable[[], str | None] = key if callable(key) else lambda: key
        self._key: str | None = None  # the one that was shown last, which no error may say
        self._key_header = key_header
        self._query = query
        self.usage_unrequested = usage_unrequested
        self._silence = silence
        self._connections = Connections(self.url, {**self.asks, **(headers or {})}, silence)

    @property
    def strict(self) -> bool:
        """Whether it refuses what the vendor's own API does not have."""
        return False

    @abstractmethod
    def login(self, key: str) -> dict[str, str]:
        """The headers that show `key`."""

    def _shown(self, key: str) -> dict[str, str]:
        return {self._key_header: key} if self._key_header else self.login(key)

    @abstractmethod
    def streamed(self, body: dict[str, Json]) -> dict[str, Json]:
        """`body` as it asks for a stream."""

    def ended(self, text: str) -> bool:
        """Whether an event's data says that the stream is over and is itself no object."""
        return False

    def models(self, seconds: float) -> list[str]:
        """The names of the models the endpoint lists, asked for `seconds` at most."""
        context = StageContext(deadline=time.monotonic() + seconds)
        told = self._json("GET", self.listing, None, context)
        data = told.get("data") if isinstance(told, dict) else told  # Together's is a bare list
        if not isinstance(data, list):
            raise self.malformed("it lists no models")
        return [item["id"] for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """One call, one answer: the JSON object the endpoint returns; an error in its place is raised."""
        answer = self._whole("POST", path, body, context)
        fault = fault_within(answer, self._key)
        if fault is not None:
            raise fault
        return answer

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """One call, its answer as the JSON objects of its events, each as it comes; an error among them is
        raised.
        """
        with self._faults(context), contextlib.closing(self._events(path, body, context)) as events:
            for text in events:
                context.check()
                event = self._record(self._parsed(text))
                fault = fault_within(event, self._key)
                if fault is not None:
                    raise fault
                yield event

    def close(self) -> None:
        self._connections.close()

    def malformed(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(
            f"The endpoint does not speak the {self.name} API format",
            {**self._where(), "reason": reason, "fix": f"check the url: it usually ends in {self.ending}"},
        )

    def _whole(
        self, method: str, path: str, body: dict[str, Json] | None, context: StageContext
    ) -> dict[str, Json]:
        return self._record(self._json(method, path, body, context))

    def _json(self, method: str, path: str, body: dict[str, Json] | None, context: StageContext) -> Json:
        with self._faults(context), self._answer(method, path, body, context) as response:
            raw = self._read(response)
        return self._parsed(raw.decode("utf-8-sig", "replace"))

    def _events(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[str]:
        """The data of each event, as it comes."""
        events = EventStream()
        with self._answer("POST", path, self.streamed(body), context) as response:
            kind = response.getheader("content-type") or "text/event-stream"
            if "text/event-stream" not in kind:
                yield self._read(response).decode("utf-8-sig", "replace")  # it answered whole, unasked
                return
            for lump in _decoded(response):
                for event in events.feed(lump):
                    if self.ended(event):
                        return
                    yield event
            for event in events.end():
                if not self.ended(event):
                    yield event

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, body: dict[str, Json] | None, context: StageContext
    ) -> Iterator[http.client.HTTPResponse]:
        raw = None if body is None else _written(body)
        self._key = self._ask_key()
        login = self._shown(self._key) if self._key else {}
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        call = Call(context.deadline, self._silence)
        context.on_cancel(call.drop)
        with self._connections.ask(method, path, raw, call, login) as response:
            if response.status != OK:
                headers = {name.lower(): value for name, value in response.getheaders()}
                raise fault_of(response.status, headers, self._read(response), self._where(), self._key)
            yield response
            call.hurry(DRAIN_SECONDS)
            with contextlib.suppress(OSError, http.client.HTTPException):
                while response.read1(LUMP):
                    pass

    @contextlib.contextmanager
    def _faults(self, context: StageContext) -> Iterator[None]:
        """What goes wrong with a call, as the grid's errors."""
        try:
            yield
        except GridError:
            raise
        except Dropped:
            context.check()
            raise SeatUnavailable(
                "The API format was closed while a call was under way", self._where()
            ) from None
        except TimeoutError:
            context.check()
            if context.deadline is not None and time.monotonic() >= context.deadline:
                raise StageTimeout(
                    "The model did not answer within the stage's time", self._where()
                ) from None
            raise SeatUnavailable("The endpoint did not answer in time", self._where()) from None
        except (OSError, http.client.HTTPException, zlib.error) as exc:
            context.check()
            raise SeatUnavailable(
                "The endpoint cannot be reached or broke the connection",
                {**self._where(), "reason": f"{type(exc).__name__}: {exc}"},
            ) from None
        except EventTooLong as exc:
            raise self.malformed(str(exc)) from None

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        raw = bytearray()
        for lump in _decoded(response):
            raw += lump
            if len(raw) > MAX_ANSWER:
                raise self.malformed(f"its answer is longer than {MAX_ANSWER} bytes")
        return bytes(raw)

    def _parsed(self, text: str) -> Json:
        try:
            return json.loads(text, parse_constant=_no_number, parse_float=_number)
        except ValueError:
            raise self.malformed("it sent something that is not JSON") from None
        except RecursionError:
            raise self.malformed("it sent JSON that is nested too deeply") from None

    def _record(self, found: Json) -> dict[str, Json]:
        if not isinstance(found, dict):
            raise self.malformed("it sent JSON that is not an object")
        return found

    def _where(self) -> dict[str, Json]:
        return {"endpoint": self.url}


def _written(body: dict[str, Json]) -> bytes:
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as exc:
        raise StageError("The request cannot be sent", {"reason": str(exc), "status": 400}) from None


def _no_number(name: str) -> None:
    """`NaN` and `Infinity`, which some engines send as log probabilities, though they are no JSON: nothing is
    stated there. The answer is paid for, and the rest of it is good.
    """


def _number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _decoded(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as it comes. No compression is asked for; some send gzip all the same."""
    packed = (response.getheader("content-encoding") or "identity").lower() != "identity"
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if packed else None
    while lump := response.read1(LUMP):
        yield unpack.decompress(lump, MAX_ANSWER + 1) if unpack else lump
    if response.length:  # what is left of the stated length: the library takes an early end for the end
        raise http.client.IncompleteRead(b"", response.length)
