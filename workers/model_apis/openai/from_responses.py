"""Serve clients of OpenAI's Responses from a seat with chat completions, and so from every other seat.

| Responses | chat/completions |
|---|---|
| `instructions`, messages of system and developer | messages of the role system, joined at the start |
| `input`: text, pictures, files with data, audio | `messages` |
| `function_call`, `custom_tool_call` and their outputs | `tool_calls`, messages of the role tool |
| `tools`: function, custom, namespaces of them | `tools`: a custom tool is a function of one string |
| `tool_choice`, `allowed_tools` among them | `tool_choice`, fewer `tools` |

The tables of the fields are in `workers.model_apis.fields.responses`. Ids and states of items are left out,
and of a tool all but what the table names. Items of reasoning go back to the model that wrote them alone. The
answer shows reasoning as a summary if the request has `reasoning.summary`.
"""

from __future__ import annotations

from collections.abc import Generator

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import CHAT, OPENAI, RESPONSES, make_field_error, translate_request
from workers.model_apis.backend import Backend, TranslatingBackend, parse_answer
from workers.model_apis.context_wrappers import RenamingContext
from workers.model_apis.fields.responses import (
    AT_CHAT,
    CLIENT_NAMES,
    REASONING_HINTS,
    RESPONSES_TO_CHAT,
    RESPONSES_TO_OPENAI,
    TEXT_HINTS,
)
from workers.model_apis.fields.table import Drop, FieldTable, add_inner_hints, ignore, rename_errors
from workers.model_apis.identity.origins import name_origin
from workers.model_apis.openai.client import convert_to_chunk
from workers.model_apis.openai.response_events import ResponseEvents
from workers.model_apis.openai.response_items import (
    Conversation,
    Tool,
    translate_tool_choice,
    translate_tools,
)

LOGPROBS = "message.output_text.logprobs"


class ResponsesToChat(TranslatingBackend):
    """A backend of OpenAI's Responses that sends its requests to `inner`, of the OpenAI API format."""

    api = RESPONSES

    def __init__(
        self, inner: Backend, seat: Backend, response_id: str, *, accepts_thinking: bool = False
    ) -> None:
        """Set `accepts_thinking` if `inner` takes the `thinking` field of Messages.

        `seat` is the backend that the requests reach at last, which gets its own reasoning back.
        """
        assert inner.api == OPENAI
        super().__init__(inner)
        self._seat = seat
        self._response_id = response_id
        self._accepts_thinking = accepts_thinking

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        request, events = self._translate(body, context.drop_field)
        with rename_errors(CLIENT_NAMES):
            answer = self._inner.post(CHAT, request, RenamingContext(context, CLIENT_NAMES))
        return parse_answer(self, lambda: _build_response(events, answer))

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request, events = self._translate(body, context.drop_field)
        renaming = RenamingContext(context, CLIENT_NAMES)
        with rename_errors(CLIENT_NAMES):
            yield from self._translate_stream(CHAT, request, renaming, events.add_chunk)
        yield from parse_answer(self, list, events.end())

    def _translate(self, body: dict[str, Json], drop: Drop) -> tuple[dict[str, Json], ResponseEvents]:
        """Return the chat request, and the translator of its answer."""
        origin = name_origin(body["model"], self._seat)
        table = RESPONSES_TO_OPENAI if self._inner.is_strict else RESPONSES_TO_CHAT
        request, tools = translate_request(translate_to_chat, body, table, origin, drop)
        if self._accepts_thinking and wants_reasoning(body):
            request["thinking"] = {"type": "adaptive"}
        return request, ResponseEvents(
            body,
            self._response_id,
            tools,
            shows_reasoning=wants_reasoning(body),
            state_origin=origin if wants_state(body) else "",
        )


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


def wants_state(body: dict[str, Json]) -> bool:
    """Return whether the answer has `encrypted_content`: if the request asks for it, and if it has tools.

    The grid stores nothing, and while tools are called many models need their reasoning back.
    """
    return bool(body.get("tools")) or "reasoning.encrypted_content" in (body.get("include") or ())


def translate_to_chat(
    body: dict[str, Json],
    table: FieldTable = RESPONSES_TO_CHAT,
    origin: str = "",
    drop: Drop = ignore,
) -> tuple[dict[str, Json], dict[str, Tool]]:
    """Translate a Responses request to chat, by the table of its target.

    Return it, and its tools by the names of their functions. `origin` is the model that gets its own
    reasoning back. `drop` is told what is left out. Raises StageError naming a field that has no counterpart.
    """
    request, stated = table.split(body, drop)
    is_strict = table is RESPONSES_TO_OPENAI
    conversation = Conversation(origin)
    conversation.add_system(stated.get("instructions") or "")
    conversation.add_items(stated["input"])
    request["messages"] = conversation.build_messages()
    if not request["messages"]:
        raise make_field_error("input", "at least one message")
    if "max_output_tokens" in stated:
        request["max_completion_tokens" if is_strict else "max_tokens"] = stated["max_output_tokens"]
    functions, tools = translate_tools(stated.get("tools"))
    request |= _translate_tool_fields(stated, functions)
    text, reasoning = stated.get("text") or {}, stated.get("reasoning") or {}
    request |= _translate_format(text.get("format"))
    if reasoning.get("effort") is not None:
        request["reasoning_effort"] = reasoning["effort"]
    add_inner_hints(reasoning, "reasoning", REASONING_HINTS, drop)
    if stated.get("top_logprobs") or LOGPROBS in (stated.get("include") or ()):
        request |= {"top_logprobs": stated.get("top_logprobs") or 0, "logprobs": True}
    if not is_strict:
        add_inner_hints(text, "text", TEXT_HINTS, drop)
    elif text.get("verbosity") is not None:
        request["verbosity"] = text["verbosity"]
    return request, tools


def _translate_tool_fields(body: dict[str, Json], functions: list[dict[str, Json]]) -> dict[str, Json]:
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
