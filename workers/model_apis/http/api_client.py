"""Base class of the API clients: send a request to an endpoint and read its answer, complete or as a stream.

The caller's own thread sends the request and reads the answer. A call can be dropped at any point. The key
never appears in an error or a log.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
import re
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import ClassVar

import orjson

from gridq.errors import GridError, SeatUnavailable, SeatUnreachable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from gridq.protocol.sse import EventTooLong, SseParser
from workers.model_apis.http.connections import Call, CallDropped, Connections, NotConnected
from workers.model_apis.http.failures import find_error, make_error
from workers.model_apis.model_kinds import ModelKind, find_kind

SILENCE_SECONDS = 300.0
"""The longest time without data. A slow engine needs minutes for the first token of a long prompt."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Limit of one answer. An endpoint that sends more is broken."""

MAX_EVENT_CHARACTERS = 8 * 1024 * 1024
"""Limit of one server-sent event."""

DRAIN_SECONDS = 0.1
"""The wait for the end of a stream after its last event, so that its connection can be reused."""

LONG_NUMBER = re.compile(r"\d{19}")
"""A whole number with as many digits may not fit into 64 bits; orjson would round it."""

READ_BYTES = 256 * 1024
OK = 200

Key = str | Callable[[], str | None] | None
"""A key, or a function that returns it for each call."""


class ApiClient(ABC):
    """Sends requests to one endpoint. Safe to use from several threads. `close` drops running calls."""

    api: ClassVar[str]
    name: ClassVar[str]
    models_path: ClassVar[str] = "models"
    usual_path: ClassVar[str] = "/v1"
    """The end of the vendor's own URL, for error messages."""

    default_headers: ClassVar[dict[str, str]] = {}
    """Headers of every request. The seat's own headers override them."""

    def __init__(
        self,
        url: str,
        key: Key = None,
        *,
        headers: dict[str, str] | None = None,
        silence: float = SILENCE_SECONDS,
        key_header: str | None = None,
        query: str = "",
        rejects_usage_option: bool = False,
        use_proxy: bool = True,
    ) -> None:
        """Create a client. It sends nothing yet.

        `url` is the base, such as `https://host/v1`, and `silence` the longest time without a byte, in
        seconds. `key_header` is the header of the key, if not that of the API format. `query` is added to
        every path. Set `rejects_usage_option` if streams state their usage unasked and asking is an error,
        and `use_proxy` to false for an endpoint on this machine.
        """
        self.url = url.rstrip("/")
        self._get_key: Callable[[], str | None] = key if callable(key) else lambda: key
        self._secrets: list[str] = []  # the last call's key and headers, which no error may show
        self._key_header = key_header
        self._query = query
        self.rejects_usage_option = rejects_usage_option
        self._silence = silence
        self._own_headers = headers or {}
        headers = {**self.default_headers, **self._own_headers}
        self._connections = Connections(self.url, headers, silence, use_proxy=use_proxy)

    def hash_key(self) -> str:
        """Return a hash of the present key, which tells accounts apart; "" without a key."""
        key = self._get_key()
        return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() if key else ""

    @property
    def is_strict(self) -> bool:
        """True if it rejects fields that the vendor's own API does not have."""
        return False

    @abstractmethod
    def make_auth_headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry `key`."""

    def _make_key_headers(self, key: str) -> dict[str, str]:
        return {self._key_header: key} if self._key_header else self.make_auth_headers(key)

    @abstractmethod
    def make_stream_body(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        """Return `body` for `path` with the request for a stream."""

    def split_headers(self, body: dict[str, Json]) -> tuple[dict[str, Json], dict[str, str]]:
        """Return the body as it is sent, and the headers that this request has in addition."""
        return body, {}

    def is_stream_end(self, text: str) -> bool:
        """Return whether an event's data marks the end of the stream."""
        return False

    def list_models(self, seconds: float) -> dict[str, ModelKind]:
        """Return the models that the endpoint lists, each with its kind, within `seconds`."""
        context = StageContext(deadline=time.monotonic() + seconds)
        listing = self._request_json("GET", self.models_path, None, context)
        data = listing.get("data") if isinstance(listing, dict) else listing  # Together sends a bare list
        if not isinstance(data, list):
            raise self.make_format_error("it lists no models")
        items = [item for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]
        return {item["id"]: find_kind(item["id"], item) for item in items}

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """Send a request and return the JSON object of the answer. Raises an error that it reports."""
        answer = self._request_object("POST", path, body, context)
        error = find_error(answer, self._secrets)
        if error is not None:
            raise error
        return answer

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """Send a request and yield the JSON object of each event. Raises an error that an event reports."""
        with (
            self._translate_errors(context),
            contextlib.closing(self._stream_events(path, body, context)) as events,
        ):
            for text in events:
                context.check()
                event = self._require_object(self._parse_json(text))
                error = find_error(event, self._secrets)
                if error is not None:
                    raise error
                yield event

    def close(self) -> None:
        self._connections.close()

    def make_format_error(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(
            f"The endpoint does not follow the {self.name} API format",
            {
                **self._make_details(),
                "reason": reason,
                "fix": f"check the url: it usually ends in {self.usual_path}",
            },
        )

    def _request_object(
        self, method: str, path: str, body: dict[str, Json] | None, context: StageContext
    ) -> dict[str, Json]:
        return self._require_object(self._request_json(method, path, body, context))

    def _request_json(
        self, method: str, path: str, body: dict[str, Json] | None, context: StageContext
    ) -> Json:
        with self._translate_errors(context), self._open_response(method, path, body, context) as response:
            raw = self._read_body(response)
        return self._parse_json(raw.decode("utf-8-sig", "replace"))

    def _stream_events(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[str]:
        """Yield the data of each event."""
        parser = SseParser(MAX_EVENT_CHARACTERS)
        with self._open_response("POST", path, self.make_stream_body(path, body), context) as response:
            content_type = response.getheader("content-type") or "text/event-stream"
            if "text/event-stream" not in content_type:
                yield self._read_body(response).decode("utf-8-sig", "replace")  # it ignored `stream`
                return
            for data in _iter_body(response):
                for event in parser.feed(data):
                    if self.is_stream_end(event.data):
                        return
                    yield event.data
            for event in parser.end():
                if not self.is_stream_end(event.data):
                    yield event.data

    @contextlib.contextmanager
    def _open_response(
        self, method: str, path: str, body: dict[str, Json] | None, context: StageContext
    ) -> Iterator[http.client.HTTPResponse]:
        body, headers = (None, {}) if body is None else self.split_headers(body)
        raw = None if body is None else _encode_body(body)
        key = self._get_key()
        auth_headers = headers | (self._make_key_headers(key) if key else {})
        self._secrets = [*([key] if key else ()), *self._own_headers.values()]
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        call = Call(lambda: context.deadline, self._silence)
        context.on_cancel(call.drop)
        with self._connections.request(method, path, raw, call, auth_headers) as response:
            if response.status != OK:
                stated = {name.lower(): value for name, value in response.getheaders()}
                raise make_error(
                    response.status,
                    stated,
                    self._read_body(response),
                    self._make_details(),
                    self._secrets,
                    path=path.partition("?")[0],
                    usual_path=self.usual_path,
                )
            yield response
            call.limit_to(DRAIN_SECONDS)
            with contextlib.suppress(OSError, http.client.HTTPException):
                while response.read1(READ_BYTES):
                    pass

    @contextlib.contextmanager
    def _translate_errors(self, context: StageContext) -> Iterator[None]:
        """Translate the errors of a call to those of the grid."""
        try:
            yield
        except GridError:
            raise
        except CallDropped:
            context.check()
            raise SeatUnavailable("The seat was closed during the call", self._make_details()) from None
        except NotConnected as exc:
            context.check()
            raise SeatUnreachable(
                "The endpoint cannot be reached", {**self._make_details(), "reason": str(exc)}
            ) from None
        except TimeoutError:
            context.check()
            if context.deadline is not None and time.monotonic() >= context.deadline:
                raise StageTimeout(
                    "The model did not answer within the stage's time limit", self._make_details()
                ) from None
            raise SeatUnavailable("The endpoint did not answer in time", self._make_details()) from None
        except (OSError, http.client.HTTPException, zlib.error) as exc:
            context.check()
            raise SeatUnavailable(
                "The endpoint closed the connection",
                {**self._make_details(), "reason": f"{type(exc).__name__}: {exc}"},
            ) from None
        except EventTooLong as exc:
            raise self.make_format_error(str(exc)) from None

    def _read_body(self, response: http.client.HTTPResponse) -> bytes:
        raw = bytearray()
        for data in _iter_body(response):
            raw += data
            if len(raw) > MAX_ANSWER_BYTES:
                raise self.make_format_error(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        return bytes(raw)

    def _parse_json(self, text: str) -> Json:
        try:
            if not LONG_NUMBER.search(text):
                value: Json = orjson.loads(text)
                return value
        except orjson.JSONDecodeError:  # NaN or 1e400, which `_DECODER` reads, or no JSON at all
            pass
        try:
            return _DECODER.decode(text)
        except ValueError:
            raise self.make_format_error("it sent something that is not JSON") from None
        except RecursionError:
            raise self.make_format_error("it sent JSON that is nested too deeply") from None

    def _require_object(self, value: Json) -> dict[str, Json]:
        if not isinstance(value, dict):
            raise self.make_format_error("it sent JSON that is not an object")
        return value

    def _make_details(self) -> dict[str, Json]:
        return {"endpoint": self.url}


def _encode_body(body: dict[str, Json]) -> bytes:
    """Return `body` as JSON in UTF-8, which is up to three times shorter than with ASCII escapes.

    By orjson, which needs a quarter of the time and of the memory where json would first make one long text.
    """
    try:
        if _is_finite(body):
            return orjson.dumps(body)
    except TypeError:  # half of a pair, an integer of more than 64 bits
        pass
    try:
        encoded = json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        try:
            return encoded.encode()
        except UnicodeEncodeError:  # half of a pair, which only an escape can express
            return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as exc:
        raise StageError(
            "The request cannot be encoded as JSON", {"reason": str(exc), "status": 400}
        ) from None


def _is_finite(value: Json) -> bool:
    """Return whether all numbers in `value` are finite. orjson would write others as null."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list) or all(map(_is_finite, value))


def _drop_constant(name: str) -> None:
    """Read `NaN` and `Infinity` as null.

    Some engines send them as log probabilities, though they are not JSON. The rest of the answer is good,
    and it is paid for.
    """


def _parse_float(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_DECODER = json.JSONDecoder(parse_constant=_drop_constant, parse_float=_parse_float)


def _iter_body(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body as it arrives. Some endpoints send gzip although no compression is requested."""
    is_compressed = (response.getheader("content-encoding") or "identity").lower() != "identity"
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_compressed else None
    while data := response.read1(READ_BYTES):
        yield decompressor.decompress(data, MAX_ANSWER_BYTES + 1) if decompressor else data
    if response.length:  # bytes of the stated length are missing, which http.client does not report
        raise http.client.IncompleteRead(b"", response.length)
