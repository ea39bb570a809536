"""A model that does what the last user message says, and the one form of a request of any API format."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

THOUGHT = "let me see"

CALL = re.compile(r"^CALL (\S+) (\{.*\})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Media:
    """A picture, a document or a sound: its MIME type, and its bytes or its URL."""

    media_type: str
    data: bytes = b""
    url: str = ""


@dataclass(frozen=True)
class Call:
    """A tool call with its arguments as the endpoint parsed them."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A tool's result for the call `id`."""

    id: str
    text: str


@dataclass
class Turn:
    """A message. `thoughts` are those that the client sent back and the endpoint verified."""

    role: str
    text: str = ""
    media: list[Media] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)


@dataclass
class Request:
    """A request of any API format. `choice` is auto, none, required, or the name of the forced tool."""

    model: str
    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    choice: str = "auto"
    parallel: bool = True
    schema: dict[str, Any] | None = None
    wants_json: bool = False
    stops: list[str] = field(default_factory=list)
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    count: int = 1
    logprobs: bool = False
    thinks: bool = False
    shows_thoughts: bool = False
    stream: bool = False

    @property
    def media(self) -> list[Media]:
        return [media for turn in self.turns for media in turn.media]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The role and the text of each turn that has a text."""
        return [(turn.role, turn.text) for turn in self.turns if turn.text]

    def count_tokens(self) -> int:
        """Return the words of the whole request."""
        words = [self.system, *(turn.text for turn in self.turns)]
        words += [result.text for turn in self.turns for result in turn.results]
        words += [json.dumps(schema) for schema in self.tools.values()]
        return sum(len(text.split()) for text in words) + 10 * len(self.media)


@dataclass(frozen=True)
class Answer:
    """What the model says. `finish` is stop, length or tools; `stop` the stop text that ended it."""

    thought: str
    words: list[str]
    calls: list[tuple[str, dict[str, Any]]]
    finish: str
    stop: str | None
    tokens_in: int
    tokens_out: int

    @property
    def text(self) -> str:
        return "".join(self.words)


def answer(request: Request) -> Answer:
    """Return the model's answer."""
    said, results = _read_end(request.turns)
    calls = _choose_calls(request, said)
    stop = None
    if calls:
        words: list[str] = []
    else:
        text = "; ".join(results) if results and not said else said
        if request.schema is not None:
            text = text if _is_json(text) else json.dumps(make_example(request.schema))
        elif request.wants_json:
            text = text if _is_json(text) else json.dumps({"answer": text})
        found = [(text.index(each), each) for each in request.stops if each in text]
        if found:
            at, stop = min(found)
            text = text[:at]
        words = re.findall(r"\S+\s*|\s+", text)
    finish = "tools" if calls else "stop"
    if request.max_tokens is not None and len(words) > request.max_tokens:
        words, finish, stop = words[: request.max_tokens], "length", None
    thought = THOUGHT if request.thinks else ""
    spent = len(words) + len(thought.split()) + 5 * len(calls)
    return Answer(thought, words, calls, finish, stop, request.count_tokens(), max(1, spent))


def _read_end(turns: list[Turn]) -> tuple[str, list[str]]:
    """Return what the user says after the last turn of the model, and the results of tools there."""
    last = max((at for at, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
    rest = turns[last + 1 :]
    said = [turn.text for turn in rest if turn.text.strip()]
    return (said[-1].strip() if said else ""), [result.text for turn in rest for result in turn.results]


def _choose_calls(request: Request, said: str) -> list[tuple[str, dict[str, Any]]]:
    if request.choice == "none" or not request.tools:
        return []
    asked = [(name, json.loads(arguments)) for name, arguments in CALL.findall(said) if name in request.tools]
    if request.choice not in ("auto", "required"):
        asked = [(name, arguments) for name, arguments in asked if name == request.choice]
        asked = asked or [(request.choice, make_example(request.tools[request.choice]))]
    if not asked and (request.choice == "required" or said.endswith("?")):
        name, schema = next(iter(request.tools.items()))
        asked = [(name, make_example(schema))]
    return asked if request.parallel else asked[:1]


def make_example(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """Return a value that fits a JSON schema."""
    root = schema if root is None else root
    if "$ref" in schema:
        return make_example(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if "enum" in schema:
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return make_example(schema[name][0], root)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    match kind:
        case "object":
            properties = schema.get("properties") or {}
            return {name: make_example(each, root) for name, each in properties.items()}
        case "array":
            return [make_example(schema.get("items") or {"type": "string"}, root)]
        case "integer" | "number":
            return max(7, schema.get("minimum", 7))
        case "boolean":
            return True
        case "null":
            return None
    return "Bern"


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False
