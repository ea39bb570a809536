"""The base of the strict servers: what they record, how they refuse, and how thoughts are sealed."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tests.compatibility.endpoints.model import Answer, Media, Request
from tests.fakes.client_types import valid
from tests.fakes.http_server import Handler, ModelServer

MAGIC = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF",
}
"""The first bytes of the types that the vendors compare with what is stated."""

LIMITED, PICKY, BREAKING, LONG = "limited", "picky", "breaking", "short-context"
"""Models that answer 429, 400 for a field, break off with an error, and have no room for any prompt."""

SCHEMAS = ("input_schema", "parameters", "schema")
"""Fields with a JSON schema, which may have any keyword."""

KEY = "sk-test-0123456789"


class Refusal(Exception):
    """What the server answers instead of serving the request."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code


class StrictServer(ModelServer):
    """A server of one vendor's API. `parsed` are the requests for answers, `requests` all of them, raw."""

    def __init__(self) -> None:
        server = self

        class StrictHandler(Handler):
            def do_GET(self) -> None:
                server.handle(self, None)

            def do_POST(self) -> None:
                server.handle(self, server.take(self))

        super().__init__(StrictHandler, KEY)
        self.parsed: list[Request] = []

    def handle(self, handler: Handler, body: dict[str, Any] | None) -> None:
        """Serve a request, or refuse it in the vendor's form."""
        try:
            try:
                self.serve(handler, body)
            except ValidationError as error:
                raise Refusal(str(error), name_field(error)) from None
        except Refusal as refusal:
            headers = {"retry-after-ms": "20"} if refusal.status == 429 else {}
            handler.answer(refusal.status, self.format_refusal(refusal), headers)

    @abstractmethod
    def serve(self, handler: Handler, body: dict[str, Any] | None) -> None:
        """Serve a request; `body` is None for a GET. Raises Refusal and ValidationError."""

    @abstractmethod
    def format_refusal(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error."""

    def stream(self, handler: Handler, events: Iterator[tuple[str | None, dict[str, Any] | str]]) -> None:
        """Send events, pairs of a name (None for none) and data."""
        handler.begin_stream()
        try:
            for name, data in events:
                head = f"event: {name}\n" if name else ""
                text = data if isinstance(data, str) else json.dumps(data)
                handler.chunk(f"{head}data: {text}\n\n".encode())
                time.sleep(0.001)
            handler.chunk(b"")
        except (BrokenPipeError, ConnectionResetError):
            self.disconnected.set()
            handler.close_connection = True


def refuse_by_model(model: str) -> None:
    """Raise the refusal of one of the models that always refuse."""
    if model == LIMITED:
        raise Refusal("Rate limit reached", status=429, code="rate_limit_exceeded")
    if model == PICKY:
        raise Refusal("temperature is not supported by this model", "temperature", code="unsupported_value")
    if model == LONG:
        raise Refusal(
            "This model's maximum context length is 1 token", "messages", code="context_length_exceeded"
        )


def check_fields(adapter: TypeAdapter[Any], body: Any) -> None:
    """Refuse a body that the vendor's types do not describe, and fields that they do not have."""
    whole = {**body, "stream": False} if body.get("stream") is True else body  # one type describes both
    unknown = _find_unknown(whole, valid(adapter, whole), "")
    if unknown:
        raise Refusal(f"Unknown parameter: '{unknown}'.", unknown, code="unknown_parameter")


def _find_unknown(given: Any, known: Any, place: str) -> str:
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            where = f"{place}.{name}".lstrip(".")
            if name in SCHEMAS:
                continue
            found = where if name not in known else _find_unknown(value, known[name], where)
            if found:
                return found
    if isinstance(given, list) and isinstance(known, list):
        for at, (one, other) in enumerate(zip(given, known, strict=False)):
            found = _find_unknown(one, other, f"{place}[{at}]")
            if found:
                return found
    return ""


def name_field(error: ValidationError) -> str:
    """Return the field of the first fault, such as `messages[0]`."""
    first, *rest = error.errors()[0]["loc"]
    return f"{first}[{rest[0]}]" if rest and isinstance(rest[0], int) else str(first)


def decode_media(media_type: str, data: str, place: str) -> Media:
    """Return the bytes of base64. Refuses what is not base64, or of another type than stated."""
    try:
        raw = base64.b64decode(data, validate=True)
    except ValueError:
        raise Refusal("Invalid base64 data", place, code="invalid_base64") from None
    if not raw.startswith(MAGIC.get(media_type, b"")):
        raise Refusal(f"The data is not {media_type}", place, code="invalid_image")
    return Media(media_type, raw)


def parse_data_url(url: str, place: str, types: tuple[str, ...]) -> Media:
    """Return the content of a data URL of one of these types, or a plain URL."""
    if url.startswith(("http://", "https://")):
        return Media("", url=url)
    head, _, data = url.partition(",")
    media_type = head.removeprefix("data:").removesuffix(";base64")
    if not head.startswith("data:") or not head.endswith(";base64") or media_type not in types:
        raise Refusal(f"Invalid data URL: {head[:60]}", place, code="invalid_value")
    return decode_media(media_type, data, place)


def parse_arguments(text: str, place: str) -> dict[str, Any]:
    """Return a tool call's arguments."""
    try:
        arguments = json.loads(text)
    except ValueError:
        raise Refusal("Arguments are not JSON", place) from None
    if not isinstance(arguments, dict):
        raise Refusal("Arguments are not an object", place)
    return arguments


def seal(vendor: str, thought: str) -> str:
    """Return the signature or the encrypted form of a thought, which only this vendor can read."""
    raw = json.dumps([thought, hashlib.sha256(f"{vendor}:{thought}".encode()).hexdigest()])
    return base64.b64encode(raw.encode()).decode()


def unseal(vendor: str, sealed: Any, place: str) -> str:
    """Return the sealed thought. Refuses what this vendor did not seal."""
    try:
        thought = str(json.loads(base64.b64decode(sealed, validate=True))[0])
    except (ValueError, TypeError, IndexError):
        thought = ""
    if not thought or seal(vendor, thought) != sealed:
        raise Refusal("Invalid signature", place, code="invalid_encrypted_content")
    return thought


def to_words(answer: Answer) -> list[str]:
    """Return the pieces of a streamed text, at least one if there are no calls."""
    return answer.words or ([] if answer.calls else [""])
