"""Running the stages of a model at an endpoint, whatever API format it speaks."""

from __future__ import annotations

import contextlib
from functools import partial

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from workers.model_apis.forwarding import Speaker, heard, in_api_format, pass_on
from workers.model_apis.request import ODD, OPENAI, Asked, ask
from workers.model_apis.stages import (
    API_REQUEST,
    Answer,
    Endpoint,
    Request,
    embedding_usage,
    request,
    vectors,
)
from workers.model_apis.usage import openai_usage


def read(stage: StageCall, value: Json) -> Request | Asked:
    """What `stage` asks of a model for the input `value`. StageError names the field that is wrong."""
    return ask(stage, value) if stage.implementation == API_REQUEST else request(stage, value)


def run(asked: Request | Asked, model: str, context: StageContext, seat: Speaker) -> Json:
    """Make the call, hand the pieces to `context` where somebody reads them, return the stage's output.

    Usage is reported to `context` as it becomes known.
    StageError, SeatError: see `faults`; whoever calls it knows whether a piece was handed on before.
    """
    if isinstance(asked, Asked):
        return pass_on(asked, model, context, seat)
    speaker = in_api_format(OPENAI, seat)
    body = {**asked.body, "model": model}
    if asked.endpoint is Endpoint.EMBEDDINGS:
        response = speaker.post(asked.endpoint, body, context)
        context.report(openai_usage(embedding_usage(response.get("usage"), body)))
        try:
            return vectors(response, isinstance(body["input"], str))
        except ODD:
            raise speaker.malformed("its answer has no embeddings") from None
    answer = Answer(asked.body)
    if not context.streaming:
        heard(speaker, partial(answer.add, whole=True), speaker.post(asked.endpoint, body, context))
        if answer.finish_reason is None and not answer.message["content"]:
            raise speaker.malformed("its answer has no choices")
        context.report(answer.spent())
        return answer.output(asked.implementation)
    with contextlib.closing(speaker.stream(asked.endpoint, body, context)) as chunks:
        for chunk in chunks:
            text = heard(speaker, answer.add, chunk)
            context.report(answer.spent())
            if text:
                context.emit(text)
    if answer.finish_reason is None:
        raise SeatUnavailable("The endpoint ended its stream before its answer was complete")
    return answer.output(asked.implementation)
