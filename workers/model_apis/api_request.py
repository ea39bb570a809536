"""Parse and check the input of the stage `llm:api_request`: a request of a model API.

The input is `{"api", "path", "body"}`, plus the fields of the node's config; `model` may stand beside them.
Only the fields that gridq reads are checked. All others are passed on to the endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gridq.errors import StageError
from gridq.protocol.models import Json, StageCall

OPENAI = "openai"
ANTHROPIC = "anthropic"
RESPONSES = "responses"
"""The name of OpenAI's Responses as an API format, and its path."""

CHAT = "chat/completions"
COMPLETIONS = "completions"
EMBEDDINGS = "embeddings"
MESSAGES = "messages"
PATHS = {OPENAI: (CHAT, COMPLETIONS, EMBEDDINGS), ANTHROPIC: (MESSAGES,), RESPONSES: (RESPONSES,)}

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long, by which clients know that they must shorten it."""

DEFAULT_COMPLETION_TOKENS = 16
"""The `max_tokens` of a text completion that states none, by OpenAI's API. Engines have other defaults."""

SHAPE_ERRORS = (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError)
"""The errors that reading a JSON value raises if it does not have the expected shape."""


@dataclass(frozen=True)
class ApiRequest:
    """One request in one API format. `location` is the place of its body in the graph.

    `betas` are the names in the header `anthropic-beta` of its client.
    """

    api: str
    path: str
    body: dict[str, Json]
    model: Json
    location: str
    betas: tuple[str, ...] = ()

    @property
    def wants_embeddings(self) -> bool:
        return self.path == EMBEDDINGS


def make_field_error(field: str, expected: str, fix: str | None = None) -> StageError:
    """Return the error for a request whose `field` is wrong. `add_path` adds the place in the graph."""
    details: dict[str, Json] = {"param": field, "expected": expected, "status": 400}
    if fix is not None:
        details["fix"] = fix
    return StageError(f"The request's {field!r} is not valid", details)


def make_path_error(path: str, place: str) -> StageError:
    """Return the error for a request to another path than a chat's, at a seat that has chats alone.

    It names the model, as OpenAI's error for a text completion of a chat model does.
    """
    fix = f"name a model with {path}" + (f", or use {CHAT}" if path == COMPLETIONS else "")
    return make_field_error("model", f"a model with {path}: no model has them {place}", fix)


def add_path(error: StageError, location: str) -> StageError:
    """Add the path of the wrong field in the graph to an error of `make_field_error`.

    Other errors stay as they are: the field that an endpoint names may belong to a translated request.
    """
    if "expected" in error.details and "param" in error.details:
        error.details.setdefault("path", f"{location}.{error.details['param']}")
    return error


T = TypeVar("T")


def translate_request(translate: Callable[..., T], *arguments: Any) -> T:
    """Return `translate(*arguments)`, a request in another API format.

    Raises StageError if a part of the request that was not checked before has an unexpected shape.
    """
    try:
        return translate(*arguments)
    except SHAPE_ERRORS:  # whose text is Python's
        raise make_field_error("body", "fields of the types that its API defines") from None


def parse_api_request(stage: StageCall, value: Json) -> ApiRequest:
    """Return the request in `value`. Raises StageError (details.status 400) naming the wrong field."""
    location = f"{stage.path}.input"
    try:
        if not isinstance(value, dict):
            raise StageError(
                "The input of llm:api_request is not an object",
                {"path": stage.path, "expected": 'an object with "api", "path" and "body"', "status": 400},
            )
        api, path, body = value.get("api"), value.get("path"), value.get("body")
        if not isinstance(api, str) or api not in PATHS:
            raise make_field_error("api", "one of " + ", ".join(PATHS))
        if path not in PATHS[api]:
            raise make_field_error("path", "one of " + ", ".join(PATHS[api]))
        if not isinstance(body, dict):
            raise make_field_error("body", "an object")
        betas = value.get("betas")
        if betas is not None and not _is_list_of(_is_string)(betas):
            raise make_field_error("betas", "a list of names, as in the header anthropic-beta")
    except StageError as error:
        raise add_path(error, location) from None
    location = f"{location}.body"
    try:
        _check_fields(body, FIELDS[path])
        if path in (CHAT, MESSAGES):
            _check_messages(body["messages"])
        if path == RESPONSES:
            _check_items(body["input"])
        for parts, check, expected in _SHAPES_IN_PARTS.get(path, ()):
            _check_shape(body, parts, check, expected)
    except StageError as error:
        raise add_path(error, location) from None
    model = value.get("model")
    if isinstance(model, list):  # `models` is the grid's own field and has done its work
        body = {name: each for name, each in body.items() if name != "models"}
    model = body.get("model") if model is None else model
    return ApiRequest(api, path, body, model, location, tuple(betas or ()))


Check = Callable[[Json], bool]


def _is_integer_from(minimum: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_string(value: Json) -> bool:
    return isinstance(value, str)


def _is_boolean(value: Json) -> bool:
    return isinstance(value, bool)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict)


def _is_absent(value: Json) -> bool:
    return value is None


def _is_list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_nonempty(check: Check) -> Check:
    return lambda value: bool(value) and check(value)


def _is_any_of(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _is_block(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


_is_tokens = _is_list_of(_is_integer_from(0))
_is_text_or_tokens = _is_any_of(_is_string, _is_list_of(_is_string), _is_tokens, _is_list_of(_is_tokens))

SAMPLING: Mapping[str, tuple[bool, Check, str]] = {
    "temperature": (False, _is_number, "a number"),
    "top_p": (False, _is_number, "a number"),
    "stream": (False, _is_boolean, "true or false"),
}
GENERATION: Mapping[str, tuple[bool, Check, str]] = {
    **SAMPLING,
    "max_tokens": (False, _is_integer_from(0), "an integer of at least 0"),
    "n": (False, _is_integer_from(1), "an integer of at least 1"),
    "stop": (False, _is_any_of(_is_string, _is_list_of(_is_string)), "a string or a list of strings"),
    "stream_options": (False, _is_object, "an object"),
}
FIELDS: Mapping[str, Mapping[str, tuple[bool, Check, str]]] = {
    CHAT: {
        "messages": (True, _is_nonempty(_is_list_of(_is_object)), "a list of at least one message"),
        "max_completion_tokens": (False, _is_integer_from(0), "an integer of at least 0"),
        "tools": (False, _is_list_of(_is_block), "a list of objects with a type"),
        "tool_choice": (False, _is_any_of(_is_string, _is_object), "a string or an object"),
        "parallel_tool_calls": (False, _is_boolean, "true or false"),
        "response_format": (False, _is_block, "an object with a type"),
        **GENERATION,
    },
    COMPLETIONS: {
        "prompt": (True, _is_text_or_tokens, "a string, a list of strings, or tokens"),
        **GENERATION,
    },
    EMBEDDINGS: {
        "input": (
            True,
            _is_nonempty(_is_text_or_tokens),
            "a string, a list of strings, or tokens; not empty",
        ),
        "encoding_format": (False, lambda value: value in ("float", "base64"), "'float' or 'base64'"),
        "dimensions": (False, _is_integer_from(1), "an integer of at least 1"),
    },
    MESSAGES: {
        "messages": (True, _is_nonempty(_is_list_of(_is_object)), "a list of at least one message"),
        "max_tokens": (True, _is_integer_from(0), "an integer of at least 0"),
        "system": (False, _is_any_of(_is_string, _is_list_of(_is_block)), "a string or a list of blocks"),
        "tools": (False, _is_list_of(_is_object), "a list of objects"),
        "tool_choice": (False, _is_block, "an object with a type"),
        "stop_sequences": (False, _is_list_of(_is_string), "a list of strings"),
        "metadata": (False, _is_object, "an object"),
        "thinking": (False, _is_block, "an object with a type"),
        "thread": (False, _is_absent, "absent: the grid keeps no conversations"),
        **SAMPLING,
    },
    RESPONSES: {
        "input": (
            True,
            _is_nonempty(_is_any_of(_is_string, _is_list_of(_is_object))),
            "a string or a list of items; not empty",
        ),
        "instructions": (False, _is_string, "a string"),
        "max_output_tokens": (False, _is_integer_from(1), "an integer of at least 1"),
        "tools": (False, _is_list_of(_is_block), "a list of objects with a type"),
        "tool_choice": (False, _is_any_of(_is_string, _is_block), "a string, or an object with a type"),
        "parallel_tool_calls": (False, _is_boolean, "true or false"),
        "text": (False, _is_object, "an object"),
        "reasoning": (False, _is_object, "an object"),
        "include": (False, _is_list_of(_is_string), "a list of strings"),
        "metadata": (False, _is_object, "an object"),
        "top_logprobs": (False, _is_integer_from(0), "an integer of at least 0"),
        "stream_options": (False, _is_object, "an object"),
        "stop": GENERATION["stop"],
        "store": (False, _is_boolean, "true or false"),
        "background": (False, _is_boolean, "true or false"),
        "previous_response_id": (False, _is_absent, "absent: the grid keeps no responses"),
        "conversation": (False, _is_absent, "absent: the grid keeps no conversations"),
        **SAMPLING,
    },
}
"""By path and field: whether it is required, its check, and the expected value in words. A null field counts
as absent.
"""


_text_or_blocks = (_is_any_of(_is_string, _is_list_of(_is_block)), "a string or a list of blocks")
_object, _string, _objects = (
    (_is_object, "an object"),
    (_is_string, "a string"),
    (_is_list_of(_is_object), "a list of objects"),
)
SHAPES: Mapping[str, Sequence[tuple[str, Check, str]]] = {
    CHAT: (
        ("thinking", *_object),
        ("tool_choice.function", *_object),
        ("response_format.json_schema", *_object),
        ("messages[].tool_calls", *_objects),
        ("messages[].tool_calls[].extra_content", *_object),
        ("messages[].tool_calls[].extra_content.google", *_object),
        ("messages[].tool_call_id", *_string),
        ("messages[].content[file].file", *_object),
        ("messages[].content[input_audio].input_audio", *_object),
        ("messages[].content[input_audio].input_audio.format", *_string),
    ),
    MESSAGES: (
        ("output_config", *_object),
        *(
            shape
            for content in ("messages[].content", "messages[].content[tool_result].content")
            for shape in (
                (f"{content}[document].source", *_object),
                (f"{content}[document].source.content", *_text_or_blocks),
                (f"{content}[search_result].content", _is_list_of(_is_block), "a list of blocks"),
            )
        ),
    ),
    RESPONSES: (
        *((f"input[].{name}", *_text_or_blocks) for name in ("content", "output")),
        ("tool_choice.tools", *_objects),
        ("tools[custom].format", *_object),
        ("tools[namespace].tools", _is_list_of(_is_block), "a list of objects with a type"),
    ),
}
"""By path: places deeper in the request that gridq reads, with their checks and expected values in words.
`[]` stands for each item of a list, `[file]` for each with this type.
"""

_PLACE_PART = re.compile(r"\w+|\[\w*\]")
_SHAPES_IN_PARTS = {
    path: [(tuple(_PLACE_PART.findall(place)), check, expected) for place, check, expected in shapes]
    for path, shapes in SHAPES.items()
}


def _check_shape(value: Json, parts: tuple[str, ...], check: Check, expected: str, place: str = "") -> None:
    """Check what stands in `value` at the place of `parts`, if it is there."""
    if value is None:
        return
    if not parts:
        if not check(value):
            raise make_field_error(place, expected)
        return
    first, rest = parts[0], parts[1:]
    if not first.startswith("["):
        if isinstance(value, dict):
            _check_shape(value.get(first), rest, check, expected, f"{place}.{first}" if place else first)
        return
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if first == "[]" or (isinstance(item, dict) and item.get("type") == first[1:-1]):
            _check_shape(item, rest, check, expected, f"{place}[{index}]")


def _check_fields(body: dict[str, Json], fields: Mapping[str, tuple[bool, Check, str]]) -> None:
    for field, (is_required, check, expected) in fields.items():
        value = body.get(field)
        if value is None:
            if is_required:
                raise make_field_error(field, expected, f"add {field!r}")
        elif not check(value):
            raise make_field_error(field, expected)


def _check_messages(messages: list[dict[str, Json]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise make_field_error(f"messages[{index}].role", "a string such as 'user'")
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            raise make_field_error(f"messages[{index}].content", "a string or a list of blocks")
        for at, block in enumerate(content):
            if not _is_block(block):
                raise make_field_error(f"messages[{index}].content[{at}]", "an object with a type")


def _check_items(items: Json) -> None:
    """Check the items of a Responses request, as far as gridq reads them."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type")
        if kind == "item_reference" or (kind is None and item.get("role") is None):
            raise make_field_error(
                f"input[{index}]",
                "an item with its content: the grid keeps no items to refer to",
                "send the item itself, as clients do that set `store` to false",
            )
        if kind is not None and not isinstance(kind, str):
            raise make_field_error(f"input[{index}].type", "a string such as 'message'")
        for name in ("content", "output"):
            content = item.get(name)
            for at, block in enumerate(content if isinstance(content, list) else ()):
                if not _is_block(block):
                    raise make_field_error(f"input[{index}].{name}[{at}]", "an object with a type")
