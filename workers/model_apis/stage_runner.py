"""Run a model's stage on a seat's backend, in every API format."""

from __future__ import annotations

import contextlib

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from workers.model_apis.adapters import adapt_backend
from workers.model_apis.api_request import OPENAI, ApiRequest, parse_api_request
from workers.model_apis.backend import Backend, parse_answer, report_usage
from workers.model_apis.chat_assembly import ChatAssembler
from workers.model_apis.forwarding import forward_request
from workers.model_apis.stages import (
    API_REQUEST,
    ModelRequest,
    build_output,
    complete_embedding_usage,
    extract_text,
    extract_vectors,
    parse_request,
)
from workers.model_apis.usage import parse_openai_usage


def parse_stage_input(stage: StageCall, value: Json) -> ModelRequest | ApiRequest:
    """Return the request that `stage` makes for the input `value`. Raises StageError naming a wrong field."""
    if stage.implementation == API_REQUEST:
        return parse_api_request(stage, value)
    return parse_request(stage, value)


def run_request(
    request: ModelRequest | ApiRequest, model: str, context: StageContext, backend: Backend
) -> Json:
    """Send `request` with the seat's `model` and return the stage's output.

    Streams to `context` if its client asked for a stream, and reports usage to `context` as it becomes
    known. Raises StageError and SeatError. It does not say whether the client has already got a part of the
    answer; the caller knows.
    """
    if isinstance(request, ApiRequest):
        return forward_request(request, model, context, backend)
    adapted = adapt_backend(OPENAI, backend)
    body = {**request.body, "model": model}
    if request.wants_embeddings:
        response = adapted.post(request.path, body, context)
        context.report(parse_openai_usage(complete_embedding_usage(response.get("usage"), body)))
        return parse_answer(adapted, extract_vectors, response, isinstance(body["input"], str))
    assembler = ChatAssembler(request.path, request.body)
    if context.is_streaming:
        with (
            report_usage(context, adapted, assembler.compute_usage) as report,
            contextlib.closing(adapted.stream(request.path, body, context)) as chunks,
        ):
            for chunk in chunks:
                parse_answer(adapted, assembler.add_event, chunk)
                if text := parse_answer(adapted, extract_text, chunk):
                    context.emit(text)
                report()
        if not assembler.is_complete:
            raise SeatUnavailable("The endpoint ended its stream before the answer was complete")
    else:
        answer = adapted.post(request.path, body, context)
        parse_answer(adapted, assembler.add_answer, answer)
        context.report(assembler.compute_usage())
    answer = parse_answer(adapted, assembler.build_answer)
    return parse_answer(adapted, build_output, request.implementation, answer)
