"""The stages that every model can run: `llm:complete`, `llm:chat` and `llm:embed`.

| implementation | input | output |
|---|---|---|
| `llm:complete` | a prompt, or `{"prompt", "system"?, "raw"?, …}` | the text |
| `llm:chat` | messages, a text, or `{"messages", "system"?, …}` | `{"role", "content", "finish_reason", …}` |
| `llm:embed` | a text, or `{"input": text or texts, …}` | a list of numbers, or a list of such lists |

`model` is read by `choose`; every other field (`max_tokens`, `temperature`, `stop`, `tools` …) goes to the
model as it is; a null field counts as not given. A bare input may also stand under one of the names that the
graph's `config` rule wraps it in (`items`, `text` …). `llm:complete` asks through the model's chat template;
`"raw": true` gives it the bare prompt to go on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from gridq.errors import SeatUnavailable, StageError
from gridq.graph.plan import WRAP_KEYS
from gridq.protocol.models import Estimate, Json, StageCall, Usage
from workers.model_apis.demand import parse_llm_demand, find_models, names_link, filter_models
from workers.model_apis.model_catalogue import ModelOffer
from workers.model_apis.usage import parse_count, complete_usage, parse_openai_usage

IMPLEMENTATIONS = ("llm:complete", "llm:chat", "llm:embed")
API_REQUEST = "llm:api_request"
"""The fourth, whose request and answer are those of a model API; see `workers.model_apis.api_request`."""

DEFAULT_ANSWER_TOKENS = 1024
"""What an answer without `max_tokens` is estimated at."""

CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for estimates only; OpenAI and Anthropic both state it for English text."""

MAX_TOOL_CALLS = 1000
"""Calls of tools in one answer at most."""

MAX_IMAGE_CHARACTERS = 1600 * CHARACTERS_PER_TOKEN
"""What a picture counts at most: Anthropic states 1,600 tokens for the largest."""


class Endpoint(StrEnum):
    """The three calls of the OpenAI-shaped API format; the values are its paths."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


@dataclass(frozen=True)
class ModelRequest:
    """One call of a model: which endpoint, the request's body (without model and stream), how to read the
    answer.
    """

    implementation: str
    endpoint: Endpoint
    body: dict[str, Json]
    model: Json = None

    @property
    def embeddings(self) -> bool:
        return self.endpoint is Endpoint.EMBEDDINGS


def parse_request(stage: StageCall, value: Json) -> ModelRequest:
    """The call that `stage` makes for input `value`; StageError names the field that is wrong."""
    match stage.implementation:
        case "llm:complete":
            return _complete(stage, _record(stage, value, "prompt", str))
        case "llm:chat":
            return _chat(stage, _record(stage, value, "messages", (str, list)))
        case "llm:embed":
            return _embed(stage, _record(stage, value, "input", (str, list)))
    raise StageError(
        f"No model runs {stage.implementation!r}",
        {
            "path": stage.path,
            "expected": "one of " + ", ".join((*IMPLEMENTATIONS, API_REQUEST)),
            "fix": "use 'llm:chat'",
        },
    )


def _complete(stage: StageCall, value: dict[str, Json]) -> ModelRequest:
    body = _body(value)
    prompt, system, raw = body.pop("prompt", None), body.pop("system", None), body.pop("raw", False)
    if not isinstance(prompt, str):
        raise _wrong(stage, "prompt", "a string")
    if system is not None and not isinstance(system, str):
        raise _wrong(stage, "system", "a string")
    if raw:
        if system:
            raise _wrong(stage, "system", "nothing beside raw: a bare prompt has no system message")
        return ModelRequest("llm:complete", Endpoint.COMPLETIONS, {**body, "prompt": prompt}, value.get("model"))
    messages = _with_system(system, [{"role": "user", "content": prompt}])
    return ModelRequest("llm:complete", Endpoint.CHAT, {**body, "messages": messages}, value.get("model"))


def _with_system(system: str | None, messages: list[Json]) -> list[Json]:
    return [{"role": "system", "content": system}, *messages] if system else messages


def _chat(stage: StageCall, value: dict[str, Json]) -> ModelRequest:
    body = _body(value)
    messages, system = body.pop("messages", None), body.pop("system", None)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if system is not None and not isinstance(system, str):
        raise _wrong(stage, "system", "a string")
    if not isinstance(messages, list) or not messages:
        raise _wrong(stage, "messages", "a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _wrong(stage, f"messages[{index}]", "an object with a role")
    body["messages"] = _with_system(system, messages)
    return ModelRequest("llm:chat", Endpoint.CHAT, body, value.get("model"))


def _embed(stage: StageCall, value: dict[str, Json]) -> ModelRequest:
    body = _body(value)
    texts = body.get("input")
    if not (isinstance(texts, str) or (isinstance(texts, list) and all(isinstance(t, str) for t in texts))):
        raise _wrong(stage, "input", "a string or a list of strings")
    if not texts or (isinstance(texts, list) and not all(texts)):
        raise _wrong(stage, "input", "no empty text and no empty list")
    return ModelRequest("llm:embed", Endpoint.EMBEDDINGS, body, value.get("model"))


def _record(stage: StageCall, value: Json, subject: str, bare: type | tuple[type, ...]) -> dict[str, Json]:
    """The input as a record whose `subject` is in its place, be it bare, wrapped or named."""
    if isinstance(value, bare):
        return {subject: value}
    if not isinstance(value, dict):
        raise StageError(
            f"The input of {stage.implementation} is not a record",
            {"path": stage.path, "expected": f"a record with {subject!r}"},
        )
    record = {key: field for key, field in value.items() if field is not None}
    if subject not in record:
        wrapped = next((key for key in WRAP_KEYS if isinstance(record.get(key), bare)), None)
        if wrapped is not None:
            record[subject] = record.pop(wrapped)
    if record.get("n", 1) != 1:
        raise _wrong(stage, "n", "1: a stage has one answer")
    return record


def _body(record: dict[str, Json]) -> dict[str, Json]:
    return {key: field for key, field in record.items() if key not in _SET_BY_THE_API}


_SET_BY_THE_API = frozenset({"model", "stream", "stream_options", "n"})


def _wrong(stage: StageCall, field: str, expected: str) -> StageError:
    return StageError(
        f"The input of {stage.implementation} has no usable {field!r}",
        {"path": f"{stage.path}.input.{field}", "expected": expected},
    )


M = TypeVar("M", bound=ModelOffer)


class ModelQuery(Protocol):
    """What a request says of its model: the name, null or `any`, and whether it must embed."""

    @property
    def model(self) -> Json: ...
    @property
    def embeddings(self) -> bool: ...


def choose_model(stage: StageCall, asked: ModelQuery, models: Sequence[M]) -> M:
    """The model of this seat that runs the stage: the first that both the effect and the input's `model`
    allow. Of an effect with several models the one counts from whose queue the seat took the stage, whichever
    of them the input names.

    SeatUnavailable: this seat has no model that the effect allows. StageError: the input names a model that
    the effect does not ask for, so that the grid had no reason to bring the stage to a seat that has it.
    """
    allowed: Sequence[ModelOffer] = models
    asks = asked.model
    for effect in stage.effects:
        demand = parse_llm_demand(effect)
        if demand is not None:
            allowed = filter_models(demand.link(stage.queue), allowed)
            asks = None if names_link(asks, demand) else asks
    if not allowed:
        raise SeatUnavailable(
            "No model of this seat meets the stage's effects",
            {
                "path": stage.path,
                "expected": "one of " + (", ".join(model.name for model in models) or "none"),
            },
        )
    wanted = find_models(asks, allowed)
    if asked.embeddings:
        wanted = sorted(wanted, key=lambda model: not model.embeddings)
    if not wanted:
        raise StageError(
            f"The input asks for the model {asked.model!r}, which the stage's effects do not bring",
            {
                "path": f"{stage.path}.input.model",
                "expected": "'any', or one of " + ", ".join(model.name for model in allowed),
                "fix": f'declare the effect {{"effect": "Llm", "model": "{asked.model}"}}',
            },
        )
    name = wanted[0].name
    return next(model for model in models if model.name == name)


class AnswerBuilder:
    """An answer as it comes in, chunk by chunk (`chat.completion.chunk`, `text_completion`) or whole, to the
    request `body`.
    """

    def __init__(self, body: dict[str, Json]) -> None:
        self._body = body
        self.message: dict[str, Any] = {"role": "assistant", "content": ""}
        self.finish_reason: str | None = None
        self._usage: Json = None
        self._tier: Json = None
        self.pieces = 0

    def add(self, chunk: dict[str, Json], *, whole: bool = False) -> str:
        """Take one chunk in, or the whole answer; returns the text it adds, "" where it adds none."""
        self._count(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return ""
        choice = choices[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        text = ""
        delta = choice.get("delta") or choice.get("message") or {}
        if "text" in choice:
            delta = {"content": choice["text"]}
        for key, part in delta.items():
            if key == "role":
                self.message["role"] = part or self.message["role"]
            elif key == "tool_calls" and isinstance(part, list):
                self._tool_calls(part)
            elif isinstance(part, str):
                self.message[key] = (self.message.get(key) or "") + part
                text += part if key == "content" else ""
            elif part is not None:
                self.message[key] = part
        says = {key: part for key, part in delta.items() if part and key != "role"}
        if says:  # calls of tools and thoughts are paid for as well
            self.pieces += estimate_tokens(says) if whole else 1
        return text

    def _count(self, chunk: dict[str, Json]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage, self._tier = usage, chunk.get("service_tier")

    def _tool_calls(self, parts: list[Json]) -> None:
        calls = self.message.setdefault("tool_calls", [])
        for position, part in enumerate(parts):
            index = position if part.get("index") is None else part["index"]
            if not isinstance(index, int) or not 0 <= index < MAX_TOOL_CALLS:
                raise ValueError("a call of a tool has no place")
            while len(calls) <= index:
                calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
            call = calls[index]
            call.update({key: part[key] for key in ("id", "type") if part.get(key)})
            for key, text in (part.get("function") or {}).items():
                call["function"][key] = call["function"].get(key, "") + (text or "")

    def output(self, implementation: str) -> Json:
        """What the stage returns."""
        if implementation == "llm:complete":
            return self.message["content"]
        return {**self.message, "finish_reason": self.finish_reason}

    def spent(self) -> Usage:
        """The usage the model stated; until it does, and what it leaves out, by rule of thumb: the request's
        characters, and the pieces seen so far as tokens.
        """
        told = complete_usage(self._usage, lambda: estimate_tokens(self._body) if self.pieces else 0, self.pieces)
        return parse_openai_usage(told, self._tier)


def extract_vectors(response: dict[str, Json], one: bool) -> Json:
    """The embeddings of a response in the order of the input; one list of numbers for `one` text."""
    data = sorted(response["data"], key=lambda item: item.get("index", 0))
    found = [item["embedding"] for item in data]
    return found[0] if one else found


def complete_embedding_usage(stated: Json, body: dict[str, Json]) -> dict[str, Json]:
    """The `usage` of an answer to the request `body` for embeddings, by rule of thumb where it states none.
    No endpoint charges for the numbers that come out.
    """
    told = complete_usage(stated, lambda: estimate_tokens(body), 0)
    return {name: told[name] for name in told if name != "completion_tokens"}


def estimate_usage(stage: StageCall, value: Json) -> Estimate:
    """Tokens a stage will use: its text at four characters a token, and as many for the answer as it may
    take.
    """
    if stage.implementation not in (*IMPLEMENTATIONS, API_REQUEST):
        return Estimate()
    told = value if isinstance(value, dict) else {}
    embeds = stage.implementation == "llm:embed"
    if stage.implementation == API_REQUEST:
        embeds = told.get("path") == Endpoint.EMBEDDINGS
        value = told = told["body"] if isinstance(told.get("body"), dict) else {}
    answer = 0
    if not embeds:
        answer = parse_count(told.get("max_tokens") or told.get("max_completion_tokens")) or DEFAULT_ANSWER_TOKENS
        answer *= parse_count(told.get("n")) or 1
    return Estimate(tokens_in=estimate_tokens(value), tokens_out=answer)


def estimate_tokens(value: Json) -> int:
    """The tokens that all texts in `value` are, by rule of thumb."""
    return count_characters(value) // CHARACTERS_PER_TOKEN + 1


def count_characters(value: Json) -> int:
    """The characters of all texts in `value`; a picture or a file written into it counts as one picture."""
    if isinstance(value, str):
        return len(value) if not value.startswith("data:") else min(len(value), MAX_IMAGE_CHARACTERS)
    if isinstance(value, dict):
        return sum(count_characters(item) for item in value.values())
    if isinstance(value, list):
        return sum(count_characters(item) for item in value)
    return 0
