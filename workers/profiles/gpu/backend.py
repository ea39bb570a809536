"""The backend of a gpu seat: answers requests of the OpenAI API format with a model's child process.

The child sends choices, usage and vectors. This module adds the other fields of the API format.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator

from gridq.errors import SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import (
    CHAT,
    COMPLETIONS,
    CONTEXT_LENGTH_EXCEEDED,
    EMBEDDINGS,
    OPENAI,
    make_field_error,
)
from workers.model_apis.backend import report_usage
from workers.model_apis.chat_assembly import ChatAssembler
from workers.model_apis.fields.chat import CHAT_TO_ENGINE
from workers.profiles.gpu.model_process import ModelProcess

SET_BY_GRID = frozenset({"model", "stream", "stream_options", "n", "dimensions", "encoding_format"})
"""Fields of text completions and embeddings that an engine does not get. All others go to it as they are."""

TOO_LONG = re.compile(
    r"exceeds? (?:the available )?context (?:size|window)|too large to process"
    r"|larger than the max context size"
)
"""What the engines say of a prompt that does not fit. OpenAI's clients know it by a code."""

PROMPTS = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
"""The field with the prompt, by path."""


class EngineBackend:
    """Sends requests to the model of `process`. Its answers repeat the `model` of the request."""

    api = OPENAI
    is_strict = False

    def __init__(self, process: ModelProcess) -> None:
        self._process = process

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """Return the complete answer. Raises StageError if the engine does not support the request."""
        if path == EMBEDDINGS:
            return self._post_embeddings(path, body, context)
        assembler = ChatAssembler(path, body)
        with (
            report_usage(context, self, assembler.compute_usage) as report,
            contextlib.closing(self.stream(path, body, context)) as chunks,
        ):
            for chunk in chunks:
                assembler.add_event(chunk)
                report()
        return assembler.build_answer()

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """Yield the chunks as the engine makes them. Raises StageError for what no engine does."""
        if path == COMPLETIONS and (body.get("n") or 1) != 1:
            raise make_field_error("n", "1: this seat's engine returns one answer", "remove 'n'")
        if path == CHAT:
            _check_content(body["messages"])
            body = self._fit_to_template(body, context)
        if body.get("tool_choice") not in (None, "auto", "none"):
            expected = "auto or none: this seat's engine cannot force a call"
            raise make_field_error("tool_choice", expected, "remove 'tool_choice'")
        if path == COMPLETIONS:
            body = {**body, "prompt": _get_single_prompt(body["prompt"])}
        head = {
            "object": "chat.completion.chunk" if path == CHAT else "text_completion",
            "created": int(time.time()),
            "model": body["model"],
        }
        with contextlib.closing(self._send(path, body, context)) as chunks:
            for chunk in chunks:
                yield {**head, **chunk}

    def _fit_to_template(self, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """Return a chat without what the model's template does not read, if the answer stays the same.

        Raises StageError for tools that the model would not see.
        """
        fitted = dict(body)
        if fitted.get("reasoning_effort") is not None and not self._process.reads_field(
            "reasoning_effort", context
        ):
            del fitted["reasoning_effort"]
            context.drop_field("reasoning_effort")
        if fitted.get("tools") and fitted.get("tool_choice") == "none":
            del fitted["tools"], fitted["tool_choice"]
        if fitted.get("tools") and not self._process.reads_field("tools", context):
            expected = f"absent: the chat template of {body['model']!r} has no place for tools"
            raise make_field_error("tools", expected, "ask for another model, or remove 'tools'")
        return fitted

    def _post_embeddings(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        answer: dict[str, Json] = {"object": "list", "model": body["model"]}
        with contextlib.closing(self._send(path, body, context)) as parts:
            for part in parts:
                answer |= part
        dimensions, data = body.get("dimensions"), answer.get("data") or [{}]
        actual = len(data[0].get("embedding") or ())
        if dimensions is not None and dimensions != actual:
            raise make_field_error("dimensions", f"{actual}, the size of this model's vectors", "remove it")
        return answer

    def _send(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        if path == CHAT:
            request, stated = CHAT_TO_ENGINE.split(body, context.drop_field)
            if "tool_choice" in stated:
                request["tool_choice"] = stated["tool_choice"]
            if "max_completion_tokens" in stated:
                request.setdefault("max_tokens", stated["max_completion_tokens"])
        else:
            request = {
                key: value for key, value in body.items() if key not in SET_BY_GRID and value is not None
            }
        most = request.get("max_tokens")
        if isinstance(most, int) and most > self._process.order.context:  # engines wrap numbers at 32 bits
            request["max_tokens"] = self._process.order.context
        try:
            for chunk in self._process.request(path, request, context):
                yield _fit_logprobs(chunk) if path == COMPLETIONS else chunk
        except StageError as error:
            error.details.setdefault("status", 400)
            if TOO_LONG.search(str(error.details.get("reason"))):
                error.details |= {"endpoint_code": CONTEXT_LENGTH_EXCEEDED, "param": PROMPTS[path]}
            raise

    def make_format_error(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable("The engine's answer does not follow the API format", {"reason": reason})


def _check_content(messages: list[dict[str, Json]]) -> None:
    """Raise StageError for a part of a message that is no text."""
    for at, message in enumerate(messages):
        content = message.get("content")
        for part_at, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] not in ("text", "refusal"):
                expected = "text: this seat's model reads nothing else"
                raise make_field_error(f"messages[{at}].content[{part_at}]", expected)


def _fit_logprobs(chunk: dict[str, Json]) -> dict[str, Json]:
    """Return a chunk of a text completion with log probabilities in its API's form. Engines send a chat's."""
    for choice in chunk.get("choices") or ():
        content = (choice.get("logprobs") or {}).get("content")
        if content is not None:
            choice["logprobs"] = {
                "tokens": [each["token"] for each in content],
                "token_logprobs": [each["logprob"] for each in content],
                "top_logprobs": [
                    {top["token"]: top["logprob"] for top in each.get("top_logprobs") or ()}
                    for each in content
                ],
            }
    return chunk


def _get_single_prompt(prompt: Json) -> Json:
    """Return the only prompt of a request, a string or tokens, out of its list if it has one.

    Raises StageError for several prompts, which an engine answers in a shape of its own.
    """
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return prompt
    if len(prompt) > 1:
        fix = "send one request for each prompt"
        raise make_field_error("prompt", "one prompt: this seat's engine takes one at a time", fix)
    return prompt[0]
