"""Serve clients of OpenAI's Responses from a seat with chat completions, and so from every other seat.

| Responses | chat/completions |
|---|---|
| `instructions`, messages of system and developer | messages of the role system, joined at the start |
| `input`: text, pictures, files with data, audio | `messages` |
| `function_call`, `custom_tool_call` and their outputs | `tool_calls`, messages of the role tool |
| `tools`: function, custom, namespaces of them | `tools`: a custom tool is a function of one string |
| `tool_choice`, `allowed_tools` among them | `tool_choice`, fewer `tools` |
| `text.format` | `response_format` |
| `reasoning.effort` | `reasoning_effort` |
| `max_output_tokens` | `max_tokens`, at OpenAI's own API `max_completion_tokens` |
| `top_logprobs`, `include` of logprobs | `logprobs`, `top_logprobs` |
| `temperature`, `top_p`, `user`, `service_tier`, unknown fields | the same |
| `parallel_tool_calls` | the same if there are tools |
| `text.verbosity`, `prompt_cache_key`, `safety_identifier` | the same at OpenAI's own API, else dropped |

Dropped, because the answer stays the same without them (HINTS): how a cache is used, what a stored response
would be called, `truncation` (a text that is too long fails), `reasoning.mode`, and what concerns the
vendor's own tools only. Ids and states of items are dropped too, and of a tool all but what the table names.
Items of reasoning are dropped, because no other model can use them. The answer shows reasoning as a summary
if the request has `reasoning.summary`. Rejected by name: the fields of REFUSED, the vendor's own tools and
their items, and files that only the vendor has.
"""

from __future__ import annotations

from collections.abc import Generator

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from gridq.protocol.response_needs import VENDOR_FIELDS
from workers.model_apis.api_request import CHAT, OPENAI, RESPONSES, make_field_error, translate_request
from workers.model_apis.backend import Backend, TranslatingBackend, parse_answer
from workers.model_apis.openai.client import convert_to_chunk
from workers.model_apis.openai.response_events import ResponseEvents
from workers.model_apis.openai.response_items import (
    AT_CHAT,
    Conversation,
    translate_tool_choice,
    translate_tools,
)

TRANSLATED = frozenset(
    {
        *(
            "model",
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "text",
            "reasoning",
        ),
        *("include", "max_output_tokens", "top_logprobs", "stream", "stream_options"),
    }
)
OWN_API = ("prompt_cache_key", "safety_identifier")
"""Hints that only OpenAI's own API takes. Other endpoints may reject a field that they do not know."""

HINTS = frozenset(
    {
        *OWN_API,
        *("store", "background", "background_options", "metadata", "truncation", "max_tool_calls"),
        *("prompt_cache_options", "prompt_cache_retention", "image", "client_metadata"),
    }
)
REFUSED = frozenset({*VENDOR_FIELDS, "n"})
"""Fields that would change the answer: those that a chat does not have, and `n`, which a response has not."""

LOGPROBS = "message.output_text.logprobs"


class ResponsesToChat(TranslatingBackend):
    """A backend of OpenAI's Responses that sends its requests to `inner`, of the OpenAI API format."""

    api = RESPONSES

    def __init__(self, inner: Backend, response_id: str, *, accepts_thinking: bool = False) -> None:
        """Set `accepts_thinking` if `inner` takes the `thinking` field of Messages."""
        assert inner.api == OPENAI
        super().__init__(inner)
        self._response_id = response_id
        self._accepts_thinking = accepts_thinking

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        request, events = self._translate(body)
        answer = self._inner.post(CHAT, request, context)
        return parse_answer(self, lambda: _build_response(events, answer))

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request, events = self._translate(body)
        yield from self._translate_stream(CHAT, request, context, events.add_chunk)
        yield from parse_answer(self, list, events.end())

    def _translate(self, body: dict[str, Json]) -> tuple[dict[str, Json], ResponseEvents]:
        """Return the chat request, and the translator of its answer."""
        request = translate_request(translate_to_chat, body, self._inner.is_strict)
        if self._accepts_thinking and wants_reasoning(body):
            request["thinking"] = {"type": "adaptive"}
        tools = translate_tools(body.get("tools"))[1]
        return request, ResponseEvents(body, self._response_id, tools, shows_reasoning=wants_reasoning(body))


def _build_response(events: ResponseEvents, answer: dict[str, Json]) -> dict[str, Json]:
    """Translate a chat completion: as a stream of one chunk, so that both ways give the same."""
    if not answer["choices"]:
        raise ValueError("its answer has no choices")
    made = [*events.add_chunk(convert_to_chunk(answer)), *events.end("stop")]
    response: dict[str, Json] = made[-1]["response"]
    return response


def wants_reasoning(body: dict[str, Json]) -> bool:
    """Return whether the request asks for a summary of the reasoning."""
    reasoning = body.get("reasoning") or {}
    return bool(reasoning.get("summary") or reasoning.get("generate_summary"))


def translate_to_chat(body: dict[str, Json], is_strict: bool = False) -> dict[str, Json]:
    """Translate a Responses request to chat, `is_strict` for the vendor's own API.

    Raises StageError naming a field that has no counterpart.
    """
    for field in REFUSED:
        if body.get(field):
            raise make_field_error(field, f"absent {AT_CHAT}", f"remove {field!r}")
    conversation = Conversation()
    conversation.add_system(body.get("instructions") or "")
    conversation.add_items(body["input"])
    messages = conversation.build_messages()
    if not messages:
        raise make_field_error("input", "at least one message")
    passed = body.keys() - TRANSLATED - HINTS - REFUSED
    request = {name: body[name] for name in body if name in passed and body[name] is not None}
    request |= {"model": body["model"], "messages": messages}
    if body.get("max_output_tokens") is not None:
        request["max_completion_tokens" if is_strict else "max_tokens"] = body["max_output_tokens"]
    request |= _translate_tool_fields(body)
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    request |= _translate_format(text.get("format"))
    if reasoning.get("effort") is not None:
        request["reasoning_effort"] = reasoning["effort"]
    if body.get("top_logprobs") or LOGPROBS in (body.get("include") or ()):
        request |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    if is_strict:
        hints = {"verbosity": text.get("verbosity"), **{name: body.get(name) for name in OWN_API}}
        request |= {name: value for name, value in hints.items() if value is not None}
    return request


def _translate_tool_fields(body: dict[str, Json]) -> dict[str, Json]:
    functions = translate_tools(body.get("tools"))[0]
    choice, functions = translate_tool_choice(body.get("tool_choice"), functions)
    if not functions:  # OpenAI rejects the other fields without tools
        if choice not in ("auto", "none"):
            raise make_field_error("tool_choice", "auto or none if there are no tools")
        return {}
    fields: dict[str, Json] = {"tools": functions}
    if body.get("tool_choice") is not None:  # some endpoints reject auto, too, unless they are set up for it
        fields["tool_choice"] = choice
    if body.get("parallel_tool_calls") is not None:
        fields["parallel_tool_calls"] = body["parallel_tool_calls"]
    return fields


def _translate_format(text_format: Json) -> dict[str, Json]:
    match text_format:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"response_format": {"type": "json_object"}}
        case {"type": "json_schema", "schema": dict()}:
            schema = {key: value for key, value in text_format.items() if key != "type" and value is not None}
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **schema}}}
    raise make_field_error("text.format", f"text, json_object or json_schema with its schema {AT_CHAT}")
