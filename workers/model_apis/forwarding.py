"""Forward a request of a model API to a seat: the stage `llm:api_request`, in every API format.

If the seat's backend has another API format than the request, an adapter translates the request and the
answer. The output is what a client of the request's API format expects.
"""

from __future__ import annotations

import base64
import contextlib
import sys
from array import array

from gridq.errors import SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.betas import find_needed_betas, takes_beta
from gridq.protocol.models import Json
from gridq.protocol.response_object import make_response_id
from workers.model_apis.adapters import adapt_backend
from workers.model_apis.anthropic.client import BETAS, AnthropicClient
from workers.model_apis.api_request import (
    COMPLETIONS,
    DEFAULT_COMPLETION_TOKENS,
    EMBEDDINGS,
    OPENAI,
    RESPONSES,
    ApiRequest,
    add_path,
    make_field_error,
)
from workers.model_apis.backend import Backend, parse_answer, report_usage
from workers.model_apis.chat_assembly import ChatAssembler
from workers.model_apis.demand import explain_missing_beta
from workers.model_apis.message_assembly import MessageAssembler
from workers.model_apis.response_assembly import ResponseAssembler
from workers.model_apis.stages import complete_embedding_usage
from workers.model_apis.usage import parse_openai_usage

OPENAI_NAMES = ("text-embedding-ada-", "text-embedding-3-", "davinci", "babbage", "gpt-3.5-turbo-instruct")
"""Parts of the names of models whose vocabulary clients use if they send tokens."""

TOKEN_FIELDS = {EMBEDDINGS: ("input",), COMPLETIONS: ("prompt",)}
"""By path: the fields that may be tokens instead of text."""


def forward_request(request: ApiRequest, model: str, context: StageContext, backend: Backend) -> Json:
    """Send `request` with the seat's `model` and return the complete answer.

    Streams the events to `context` if its client asked for a stream, and reports usage to `context` as it
    becomes known. Raises StageError if the request is at fault, with its HTTP status in `details.status`,
    and SeatError if the seat is.
    """
    response_id = make_response_id(context.job) if request.api == RESPONSES else ""
    adapted = adapt_backend(request.api, backend, response_id, model)
    body = {**request.body, "model": model}
    body.pop("stream", None)
    if request.path == COMPLETIONS and body.get("max_tokens") is None:
        body["max_tokens"] = DEFAULT_COMPLETION_TOKENS
    try:
        if request.betas:
            body |= _choose_betas(request, backend, context)
        for field in TOKEN_FIELDS.get(request.path, ()):
            _check_tokens(field, body, adapted)
        if request.wants_embeddings:
            return _forward_embeddings(request, body, context, adapted)
        assembler = _make_assembler(request)
        if context.is_streaming:
            _forward_stream(request, body, context, adapted, assembler)
        else:
            body.pop("stream_options", None)
            answer = adapted.post(request.path, body, context)
            parse_answer(adapted, assembler.add_answer, answer)
            context.report(parse_answer(adapted, assembler.compute_usage))
        return parse_answer(adapted, assembler.build_answer)
    except StageError as error:
        raise add_path(error, request.location) from None


def _choose_betas(request: ApiRequest, backend: Backend, context: StageContext) -> dict[str, Json]:
    """Return the field with the betas that `backend` takes. The client is told which it does not.

    Raises StageError for one without which the request means something else.
    """
    allowed = None
    if isinstance(backend, AnthropicClient) and request.api == backend.api:
        allowed = backend.allowed_betas
    taken = [beta for beta in request.betas if allowed is not None and takes_beta(allowed, beta)]
    left = [beta for beta in request.betas if beta not in taken]
    for beta in find_needed_betas(request.body, left):
        if not takes_beta(allowed, beta):
            reason = explain_missing_beta(beta, has_betas=allowed is not None)
            expected = f"names of betas that the seat takes: {reason}"
            raise make_field_error("anthropic-beta", expected, f"remove {beta} and the fields that need it")
    for beta in left:
        context.drop_field(f"anthropic-beta: {beta}")
    return {BETAS: taken} if taken else {}


Assembler = ChatAssembler | MessageAssembler | ResponseAssembler


def _make_assembler(request: ApiRequest) -> Assembler:
    if request.api == OPENAI:
        return ChatAssembler(request.path, request.body)
    return (ResponseAssembler if request.api == RESPONSES else MessageAssembler)(request.body)


def _forward_stream(
    request: ApiRequest,
    body: dict[str, Json],
    context: StageContext,
    backend: Backend,
    assembler: Assembler,
) -> None:
    relay = StreamRelay(request, context)
    with (
        report_usage(context, backend, assembler.compute_usage) as report,
        contextlib.closing(backend.stream(request.path, body, context)) as events,
    ):
        for event in events:
            has_content = parse_answer(backend, assembler.add_event, event)
            relay.send(event, has_content)
            if has_content:  # the first word does not wait for it
                report()
        if not assembler.is_complete:
            raise SeatUnavailable("The endpoint ended its stream before the answer was complete")
    if isinstance(assembler, ChatAssembler):
        relay.send_usage(assembler)


class StreamRelay:
    """Decides which events of a stream the client gets, and when.

    Events without content (a role, an empty block) wait for the first one with content: until then another
    seat can still take over.
    """

    def __init__(self, request: ApiRequest, context: StageContext) -> None:
        options = request.body.get("stream_options")
        self._started = False
        self._is_openai = request.api == OPENAI
        self._include_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._usage_event: dict[str, Json] | None = None
        self._context = context
        self._deferred: list[dict[str, Json]] = []

    def send(self, event: dict[str, Json], has_content: bool) -> None:
        """Send `event` to the client, or defer it."""
        if event.get("type") == "ping":
            return
        if self._is_openai and event.get("usage") and not event.get("choices"):
            self._usage_event = event  # a seat may repeat it; the client gets it once, at the end
            return
        if not has_content and not self._started:
            self._deferred.append(event)
            return
        self._started = True
        deferred, self._deferred = self._deferred, []
        self._context.emit(*deferred, event)

    def send_usage(self, assembler: ChatAssembler) -> None:
        """Send the usage chunk if the client asked for it. Create it if the endpoint sent none."""
        if self._include_usage:
            last = self._usage_event or {**assembler.build_head(), "choices": []}
            self._context.emit({**last, "usage": assembler.build_usage()})


def _forward_embeddings(
    request: ApiRequest, body: dict[str, Json], context: StageContext, backend: Backend
) -> dict[str, Json]:
    answer = backend.post(request.path, body, context)
    data = answer.get("data")
    if not isinstance(data, list) or not all(isinstance(item, dict) and "embedding" in item for item in data):
        raise backend.make_format_error("its answer has no embeddings")
    convert = _encode_vector if body.get("encoding_format") == "base64" else _decode_vector
    try:
        data = [
            {"object": "embedding", "index": index, **item, "embedding": convert(item["embedding"])}
            for index, item in enumerate(data)
        ]
        data.sort(key=lambda item: int(item["index"]))
    except (TypeError, ValueError, OverflowError):
        raise backend.make_format_error("its embeddings are not numbers") from None
    usage = complete_embedding_usage(answer.get("usage"), body)
    context.report(parse_openai_usage(usage))
    return {"object": "list", "model": body["model"], **answer, "data": data, "usage": usage}


def _check_tokens(field: str, body: dict[str, Json], backend: Backend) -> None:
    """Refuse tokens at a model that is not OpenAI's: clients make them with OpenAI's vocabulary."""
    value, model = body[field], body["model"]
    if isinstance(value, str) or all(isinstance(each, str) for each in value):
        return
    if backend.is_strict or (isinstance(model, str) and any(name in model for name in OPENAI_NAMES)):
        return
    raise make_field_error(
        field,
        f"a string or a list of strings: {model!r} may have another vocabulary than the tokens",
        "send the text itself (in LangChain, check_embedding_ctx_length=False)"
        if field == "input"
        else "send the text itself",
    )


def _encode_vector(vector: Json) -> str:
    """Return a vector as the base64 of its 32-bit floats, little-endian."""
    if isinstance(vector, str):
        return vector
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _decode_vector(vector: Json) -> list[float]:
    """Return a vector as a list of numbers."""
    if not isinstance(vector, str):
        return list(vector)
    numbers = array("f")
    numbers.frombytes(base64.b64decode(vector, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
