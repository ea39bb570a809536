"""The stage `llm:api_request`: a request of a model API as its client sent it, and what is wrong with it.

The input is `{"api", "path", "body"}`, the node's config laid over it, so that `model` may stand beside
them. Only what the API formats below need to read is looked at; every other field is for the endpoint to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gridq.errors import StageError
from gridq.protocol.models import Json, StageCall

OPENAI = "openai"
ANTHROPIC = "anthropic"
CHAT = "chat/completions"
COMPLETIONS = "completions"
EMBEDDINGS = "embeddings"
MESSAGES = "messages"
PATHS = {OPENAI: (CHAT, COMPLETIONS, EMBEDDINGS), ANTHROPIC: (MESSAGES,)}


ODD = (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError)
"""What reading a JSON value raises where it has not the shape that it should have."""


@dataclass(frozen=True)
class Asked:
    """One request: in which API format, at which path, its body; `place` is where the body stands in the graph."""

    api: str
    path: str
    body: dict[str, Json]
    model: Json
    place: str

    @property
    def embeddings(self) -> bool:
        return self.path == EMBEDDINGS


def wrong(field: str, expected: str, fix: str | None = None) -> StageError:
    """A request whose `field` is not usable; `place` is added by who knows it (see `placed`)."""
    details: dict[str, Json] = {"param": field, "expected": expected, "status": 400}
    if fix is not None:
        details["fix"] = fix
    return StageError(f"The request's {field!r} is not usable", details)


def placed(error: StageError, place: str) -> StageError:
    """`error` with the path of its field in the graph, where it is one of `wrong`; the field that an
    endpoint names may be one of a translated request.
    """
    if "expected" in error.details and "param" in error.details:
        error.details.setdefault("path", f"{place}.{error.details['param']}")
    return error


def translated(translate: Callable[..., dict[str, Json]], *told: Json) -> dict[str, Json]:
    """A request in another API format. StageError: a part of it that is not looked at before has an odd shape."""
    try:
        return translate(*told)
    except ODD as exc:
        raise wrong("body", f"a request of its API format ({type(exc).__name__}: {exc})") from None


def ask(stage: StageCall, value: Json) -> Asked:
    """The request that `value` holds. StageError (details.status 400) names the field that is wrong."""
    place = f"{stage.path}.input"
    try:
        if not isinstance(value, dict):
            raise StageError(
                "The input of llm:api_request is not a record",
                {"path": stage.path, "expected": 'a record with "api", "path" and "body"', "status": 400},
            )
        api, path, body = value.get("api"), value.get("path"), value.get("body")
        if not isinstance(api, str) or api not in PATHS:
            raise wrong("api", "one of " + ", ".join(PATHS))
        if path not in PATHS[api]:
            raise wrong("path", "one of " + ", ".join(PATHS[api]))
        if not isinstance(body, dict):
            raise wrong("body", "an object")
    except StageError as error:
        raise placed(error, place) from None
    place = f"{place}.body"
    try:
        _check(body, FIELDS[path])
        if path in (CHAT, MESSAGES):
            _check_messages(body["messages"])
    except StageError as error:
        raise placed(error, place) from None
    model = value.get("model")
    if isinstance(model, list):  # the grid's own field, which has brought it here
        body = {name: each for name, each in body.items() if name != "models"}
    return Asked(api, path, body, body.get("model") if model is None else model, place)


Test = Callable[[Json], bool]


def _integer(least: int) -> Test:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Json) -> bool:
    return isinstance(value, str)


def _flag(value: Json) -> bool:
    return isinstance(value, bool)


def _object(value: Json) -> bool:
    return isinstance(value, dict)


def _list(test: Test) -> Test:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _filled(test: Test) -> Test:
    return lambda value: bool(value) and test(value)


def _either(*tests: Test) -> Test:
    return lambda value: any(test(value) for test in tests)


def _block(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


_tokens = _list(_integer(0))
_texts_or_tokens = _either(_text, _list(_text), _tokens, _list(_tokens))

SAMPLING: Mapping[str, tuple[bool, Test, str]] = {
    "temperature": (False, _number, "a number"),
    "top_p": (False, _number, "a number"),
    "stream": (False, _flag, "true or false"),
}
GENERATING: Mapping[str, tuple[bool, Test, str]] = {
    **SAMPLING,
    "max_tokens": (False, _integer(1), "a whole number of at least 1"),
    "n": (False, _integer(1), "a whole number of at least 1"),
    "stop": (False, _either(_text, _list(_text)), "a text or a list of texts"),
    "stream_options": (False, _object, "an object"),
}
FIELDS: Mapping[str, Mapping[str, tuple[bool, Test, str]]] = {
    CHAT: {
        "messages": (True, _filled(_list(_object)), "a list of at least one message"),
        "max_completion_tokens": (False, _integer(1), "a whole number of at least 1"),
        "tools": (False, _list(_block), "a list of objects with a type"),
        "tool_choice": (False, _either(_text, _object), "a text or an object"),
        "parallel_tool_calls": (False, _flag, "true or false"),
        "response_format": (False, _block, "an object with a type"),
        **GENERATING,
    },
    COMPLETIONS: {
        "prompt": (True, _texts_or_tokens, "a text, a list of texts, or tokens"),
        **GENERATING,
    },
    EMBEDDINGS: {
        "input": (True, _filled(_texts_or_tokens), "a text, a list of texts, or tokens; not empty"),
        "encoding_format": (False, lambda value: value in ("float", "base64"), "'float' or 'base64'"),
        "dimensions": (False, _integer(1), "a whole number of at least 1"),
    },
    MESSAGES: {
        "messages": (True, _filled(_list(_object)), "a list of at least one message"),
        "max_tokens": (True, _integer(1), "a whole number of at least 1"),
        "system": (False, _either(_text, _list(_block)), "a text or a list of blocks"),
        "tools": (False, _list(_object), "a list of objects"),
        "tool_choice": (False, _block, "an object with a type"),
        "stop_sequences": (False, _list(_text), "a list of texts"),
        "metadata": (False, _object, "an object"),
        "thinking": (False, _block, "an object with a type"),
        **SAMPLING,
    },
}
"""Of each path: the field, whether it must be there, what it must be, and that in words; null is as not
given.
"""


def _check(body: dict[str, Json], fields: Mapping[str, tuple[bool, Test, str]]) -> None:
    for field, (needed, test, expected) in fields.items():
        value = body.get(field)
        if value is None:
            if needed:
                raise wrong(field, expected, f"add {field!r}")
        elif not test(value):
            raise wrong(field, expected)


def _check_messages(messages: list[dict[str, Json]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise wrong(f"messages[{index}].role", "a text such as 'user'")
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            raise wrong(f"messages[{index}].content", "a text or a list of blocks")
        for at, block in enumerate(content):
            if not _block(block):
                raise wrong(f"messages[{index}].content[{at}]", "an object with a type")
