"""A model's child process as a speaker of the OpenAI API format.

The child hands on choices, usage and vectors; what else an object of the API format has is added here.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Generator

from gridq.errors import SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.answer_assembly import ChatAssembler
from workers.model_apis.api_request import CHAT, COMPLETIONS, EMBEDDINGS, OPENAI, ApiRequest, make_field_error
from workers.profiles.gpu.model_process import ModelProcess

MADE = {CHAT: ("chatcmpl", "chat.completion.chunk")}
NOT_FOR_ENGINES = frozenset({"model", "stream", "stream_options", "n", "dimensions", "encoding_format"})


class EngineBackend:
    """Speaks for the model of `process`, which the API format calls by the name in a request's `model`."""

    api = OPENAI
    strict = False

    def __init__(self, process: ModelProcess) -> None:
        self._process = process

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """The whole answer. StageError: the engine refuses the request, or cannot give its `dimensions`."""
        if path == EMBEDDINGS:
            return self._embed(path, body, context)
        whole = ChatAssembler(ApiRequest(OPENAI, path, body, body["model"], ""))
        with contextlib.closing(self.stream(path, body, context)) as chunks:
            for chunk in chunks:
                whole.add(chunk)
                context.report(whole.spent())
        return whole.answer()

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """The chunks as they are made. StageError: several answers are asked for."""
        if (body.get("n") or 1) != 1:
            raise make_field_error("n", "1: this seat's engine gives one answer", "leave 'n' out")
        if path == COMPLETIONS:
            body = {**body, "prompt": _only(body["prompt"])}
        prefix, made = MADE.get(path, ("cmpl", "text_completion"))
        head = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": made,
            "created": int(time.time()),
            "model": body["model"],
        }
        with contextlib.closing(self._ask(path, body, context)) as chunks:
            for chunk in chunks:
                yield {**head, **chunk}

    def _embed(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        answer: dict[str, Json] = {"object": "list", "model": body["model"]}
        with contextlib.closing(self._ask(path, body, context)) as parts:
            for part in parts:
                answer |= part
        wanted, data = body.get("dimensions"), answer.get("data") or [{}]
        has = len(data[0].get("embedding") or ())
        if wanted is not None and wanted != has:
            raise make_field_error("dimensions", f"{has}, as many as this model's vectors have", "leave it out")
        return answer

    def _ask(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        asked = {
            key: value for key, value in body.items() if key not in NOT_FOR_ENGINES and value is not None
        }
        if "max_completion_tokens" in asked:
            asked.setdefault("max_tokens", asked.pop("max_completion_tokens"))
        try:
            yield from self._process.ask(path, asked, context)
        except StageError as error:
            error.details.setdefault("status", 400)
            raise

    def malformed(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable("The engine's answer is not of the API format", {"reason": reason})


def _only(prompt: Json) -> Json:
    """The one prompt, a text or its tokens, of a request that may give it in a list. StageError: there are
    several, which an engine answers in a shape of its own.
    """
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return prompt
    if len(prompt) > 1:
        fix = "send each in a request of its own"
        raise make_field_error("prompt", "one: this seat's engine continues one at a time", fix)
    return prompt[0]
