"""Serve clients that send `functions` and `function_call`, which OpenAI's chat had before `tools`.

| `functions` | `tools` |
|---|---|
| `functions` | `tools` of the type function |
| `function_call` none, auto, `{"name"}` | `tool_choice` |
| `function_call` of an assistant's message | `tool_calls`, one |
| messages of the role function | messages of the role tool |

Only OpenAI's own API still takes the old fields; other endpoints leave them out without a word. An answer has
one `function_call`, the first call of the model.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import CHAT, OPENAI, make_field_error, translate_request
from workers.model_apis.backend import Backend, TranslatingBackend, parse_answer
from workers.model_apis.fields.chat import LEGACY
from workers.model_apis.fields.table import rename_errors

CLIENT_NAMES = {"tools": "functions", "tool_choice": "function_call"}


class LegacyFunctions(TranslatingBackend):
    """A backend of the OpenAI API format that sends its requests to `inner`, of the same format."""

    api = OPENAI

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.is_strict = inner.is_strict

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        request = translate_request(translate_to_tools, path, body)
        if not body.get("functions"):
            return self._inner.post(path, request, context)
        with rename_errors(CLIENT_NAMES):
            answer = self._inner.post(path, request, context)
        return parse_answer(self, _translate_answer, answer)

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request = translate_request(translate_to_tools, path, body)
        if not body.get("functions"):
            yield from self._inner.stream(path, request, context)
            return
        with rename_errors(CLIENT_NAMES):
            yield from self._translate_stream(path, request, context, lambda each: [_translate_answer(each)])


def translate_to_tools(path: str, body: dict[str, Json]) -> dict[str, Json]:
    """Return the request with `tools`. Raises StageError naming a field that is not valid."""
    if path != CHAT:
        return body
    request = {name: value for name, value in body.items() if name not in LEGACY}
    request["messages"] = _translate_messages(body["messages"])
    functions, choice = body.get("functions"), body.get("function_call")
    if not functions:
        return request
    if not isinstance(functions, list) or not all(isinstance(each, dict) for each in functions):
        raise make_field_error("functions", "a list of functions with a name")
    request["tools"] = [{"type": "function", "function": function} for function in functions]
    if isinstance(choice, dict):
        request["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif choice in ("auto", "none"):
        request["tool_choice"] = choice
    elif choice is not None:
        raise make_field_error("function_call", "auto, none or a function's name")
    return request


def _translate_messages(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    translated: list[dict[str, Json]] = []
    call_id = ""
    for at, message in enumerate(messages):
        called = message.get("function_call")
        if message["role"] == "assistant" and isinstance(called, dict) and not message.get("tool_calls"):
            call_id = f"call_{at}"
            call = {"id": call_id, "type": "function", "function": called}
            rest = {name: value for name, value in message.items() if name != "function_call"}
            translated.append({**rest, "tool_calls": [call]})
        elif message["role"] == "function":
            result = {"role": "tool", "tool_call_id": call_id, "content": message.get("content")}
            translated.append(result)
        else:
            translated.append(message)
    return translated


def _translate_answer(answer: dict[str, Json]) -> dict[str, Json]:
    """Return a completion or a chunk with `function_call`."""
    if not isinstance(answer.get("choices"), list):
        return answer
    return {**answer, "choices": [_translate_choice(choice) for choice in answer["choices"]]}


def _translate_choice(choice: Json) -> Json:
    if not isinstance(choice, dict):
        return choice
    translated: dict[str, Any] = dict(choice)
    if choice.get("finish_reason") == "tool_calls":
        translated["finish_reason"] = "function_call"
    for place in ("message", "delta"):
        message = choice.get(place)
        if isinstance(message, dict) and message.get("tool_calls"):
            first = message["tool_calls"][0]
            translated[place] = {name: value for name, value in message.items() if name != "tool_calls"}
            if first.get("index", 0) == 0:
                translated[place]["function_call"] = first["function"]
    return translated
