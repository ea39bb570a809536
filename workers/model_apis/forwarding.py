"""Passing a request of a model API on: the one walk of `llm:api_request`, whatever API format the seat speaks.

The seat is a `Speaker`; where it speaks another API format than the one that was asked, a translating speaker
stands before it. What goes out is what the asked API format's own client expects.
"""

from __future__ import annotations

import base64
import contextlib
import sys
import time
from array import array
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

from gridq.errors import SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.anthropic.from_chat import ChatAsMessages
from workers.model_apis.google.api import GOOGLE
from workers.model_apis.google.from_chat import ChatAsGoogle
from workers.model_apis.openai.from_messages import MessagesAsChat
from workers.model_apis.request import ODD, OPENAI, Asked, placed
from workers.model_apis.stages import embedding_usage
from workers.model_apis.usage import openai_usage
from workers.model_apis.whole_answers import Chunks, Events, Whole

T = TypeVar("T")

REPORT_SECONDS = 0.2
"""Between two reports of what a stream has used so far; the last comes with its end, however it ends."""


class Speaker(Protocol):
    """Who makes the call: an endpoint or an engine, in the API format named by `api`."""

    @property
    def api(self) -> str: ...
    @property
    def strict(self) -> bool:
        """Whether it refuses what the vendor's own API does not have."""

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """One call, its whole answer. StageError, SeatError."""

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """One call, its answer event by event; an event that tells of an error is raised."""

    def malformed(self, reason: str) -> SeatUnavailable:
        """The error for an answer that is not of the API format."""


def in_api_format(api: str, seat: Speaker) -> Speaker:
    """`seat` as one that speaks `api`."""
    if seat.api == api:
        return seat
    if seat.api == GOOGLE:
        chat = ChatAsGoogle(seat)
        return chat if api == OPENAI else MessagesAsChat(chat, thinks=True)
    return ChatAsMessages(seat) if api == OPENAI else MessagesAsChat(seat)


def pass_on(asked: Asked, model: str, context: StageContext, seat: Speaker) -> Json:
    """Make the call that was `asked` with the seat's `model`; returns the whole answer, hands its pieces to
    `context`.

    Usage is reported to `context` as it becomes known.
    StageError: the request's fault, details.status says which. SeatError: the seat's.
    """
    speaker = in_api_format(asked.api, seat)
    body = {**asked.body, "model": model}
    body.pop("stream", None)
    try:
        if asked.embeddings:
            return _embed(asked, body, context, speaker)
        whole: Whole = Chunks(asked) if asked.api == OPENAI else Events(asked)
        if context.streaming:
            _stream(asked, body, context, speaker, whole)
        else:
            body.pop("stream_options", None)
            answer = speaker.post(asked.path, body, context)
            heard(speaker, whole.take, answer)
            context.report(heard(speaker, whole.spent))
        return heard(speaker, whole.answer)
    except StageError as error:
        raise placed(error, asked.place) from None


def heard(speaker: Speaker, read: Callable[..., T], *told: Json) -> T:
    """What `read` makes of something the seat sent; the seat's fault where it has not the API format's shape."""
    try:
        return read(*told)
    except ODD as exc:
        raise speaker.malformed(f"what it sent is not of the API format ({exc})") from None


def _stream(
    asked: Asked, body: dict[str, Json], context: StageContext, speaker: Speaker, whole: Whole
) -> None:
    told = Telling(asked, context)
    due = 0.0
    try:
        with contextlib.closing(speaker.stream(asked.path, body, context)) as events:
            for event in events:
                says = heard(speaker, whole.add, event)
                if time.monotonic() >= due:
                    context.report(heard(speaker, whole.spent))
                    due = time.monotonic() + REPORT_SECONDS
                told.tell(event, says)
        if not whole.complete:
            raise SeatUnavailable("The endpoint ended its stream before its answer was complete")
    finally:
        with contextlib.suppress(*ODD):  # what it was told of its usage so far may be of an odd shape
            context.report(whole.spent())
    if isinstance(whole, Chunks):
        told.usage(whole)


class Telling:
    """Which events of a stream the client gets, and when.

    Events that say nothing yet (a role, an empty block) wait for the first that does: until then another seat
    may still be asked.
    """

    def __init__(self, asked: Asked, context: StageContext) -> None:
        options = asked.body.get("stream_options")
        self._begun = False
        self._chunks = asked.api == OPENAI
        self._usage_asked = isinstance(options, dict) and bool(options.get("include_usage"))
        self._usage: dict[str, Json] | None = None
        self._context = context
        self._held: list[dict[str, Json]] = []

    def tell(self, event: dict[str, Json], says: bool) -> None:
        if event.get("type") == "ping":
            return
        if self._chunks and event.get("usage") and not event.get("choices"):
            self._usage = event  # a seat may say it again and again, the client hears it once, at the end
            return
        if not says and not self._begun:
            self._held.append(event)
            return
        self._begun = True
        held, self._held = self._held, []
        for each in (*held, event):
            self._context.emit(each)

    def usage(self, whole: Chunks) -> None:
        """The chunk of the usage for a client that asked for it, made up where the endpoint sent none."""
        if self._usage_asked:
            last = self._usage or {**whole.head(), "choices": []}
            self._context.emit({**last, "usage": whole.stated()})


def _embed(asked: Asked, body: dict[str, Json], context: StageContext, speaker: Speaker) -> dict[str, Json]:
    answer = speaker.post(asked.path, body, context)
    data = answer.get("data")
    if not isinstance(data, list) or not all(isinstance(item, dict) and "embedding" in item for item in data):
        raise speaker.malformed("its answer has no embeddings")
    write = _as_text if body.get("encoding_format") == "base64" else _as_numbers
    try:
        data = [
            {"object": "embedding", "index": index, **item, "embedding": write(item["embedding"])}
            for index, item in enumerate(data)
        ]
        data.sort(key=lambda item: int(item["index"]))
    except (TypeError, ValueError, OverflowError):
        raise speaker.malformed("its embeddings are no numbers") from None
    usage = embedding_usage(answer.get("usage"), body)
    context.report(openai_usage(usage))
    return {"object": "list", "model": body["model"], **answer, "data": data, "usage": usage}


def _as_text(vector: Json) -> str:
    """A vector as the base64 of its 32-bit floats, little-endian: `encoding_format` base64."""
    if isinstance(vector, str):
        return vector
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _as_numbers(vector: Json) -> list[float]:
    if not isinstance(vector, str):
        return list(vector)
    numbers = array("f")
    numbers.frombytes(base64.b64decode(vector, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
