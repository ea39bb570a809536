"""The stages that every model can run: `llm:complete`, `llm:chat` and `llm:embed`.

| implementation | input | output |
|---|---|---|
| `llm:complete` | a prompt, or `{"prompt", "system"?, "raw"?, …}` | the text |
| `llm:chat` | messages, a string, or `{"messages", …}` | `{"role", "content", "finish_reason", …}` |
| `llm:embed` | a string, or `{"input": string or strings, …}` | a list of numbers, or a list of such lists |

`choose_model` reads `model`. Every other field (`max_tokens`, `temperature`, `stop`, `tools` …) goes to the
model unchanged; a null field counts as absent. A bare input may also stand under one of the names in which
the graph's `config` wraps it (`items`, `text` …). `llm:complete` applies the model's chat template;
`"raw": true` sends the bare prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gridq.errors import SeatUnavailable, StageError
from gridq.graph.plan import WRAP_KEYS
from gridq.protocol.models import Estimate, Json, StageCall
from workers.model_apis.api_request import CHAT, COMPLETIONS, DEFAULT_COMPLETION_TOKENS, EMBEDDINGS
from workers.model_apis.demand import filter_models, find_models, names_alternative, parse_llm_demand
from workers.model_apis.model_catalogue import ModelOffer
from workers.model_apis.token_estimates import estimate_tokens
from workers.model_apis.usage import complete_usage, parse_count

IMPLEMENTATIONS = ("llm:complete", "llm:chat", "llm:embed")
API_REQUEST = "llm:api_request"
"""The fourth stage. It takes a request of a model API; see `workers.model_apis.api_request`."""

DEFAULT_ANSWER_TOKENS = 1024
"""The estimate for an answer without `max_tokens`."""


@dataclass(frozen=True)
class ModelRequest:
    """A request to a model: its stage, its path in the OpenAI API format, and its body without `model` and
    `stream`.
    """

    implementation: str
    path: str
    body: dict[str, Json]
    model: Json = None

    @property
    def wants_embeddings(self) -> bool:
        return self.path == EMBEDDINGS


def parse_request(stage: StageCall, value: Json) -> ModelRequest:
    """Return the request that `stage` makes for the input `value`. Raises StageError naming a wrong field."""
    match stage.implementation:
        case "llm:complete":
            return _parse_complete(stage, _normalize_input(stage, value, "prompt", str))
        case "llm:chat":
            return _parse_chat(stage, _normalize_input(stage, value, "messages", (str, list)))
        case "llm:embed":
            return _parse_embed(stage, _normalize_input(stage, value, "input", (str, list)))
    raise StageError(
        f"No model runs {stage.implementation!r}",
        {
            "path": stage.path,
            "expected": "one of " + ", ".join((*IMPLEMENTATIONS, API_REQUEST)),
            "fix": "use 'llm:chat'",
        },
    )


def _parse_complete(stage: StageCall, value: dict[str, Json]) -> ModelRequest:
    body = _select_body(value)
    prompt, system, raw = body.pop("prompt", None), body.pop("system", None), body.pop("raw", False)
    if not isinstance(prompt, str):
        raise _make_input_error(
            stage, "prompt", "a string", "give it a prompt; for messages, use llm_chat (chat.delay)"
        )
    if system is not None and not isinstance(system, str):
        raise _make_input_error(stage, "system", "a string")
    if raw:
        if system:
            raise _make_input_error(stage, "system", "absent: a raw prompt has no system message")
        body = {**body, "prompt": prompt}
        return ModelRequest("llm:complete", COMPLETIONS, body, value.get("model"))
    messages = _prepend_system(system, [{"role": "user", "content": prompt}])
    return ModelRequest("llm:complete", CHAT, {**body, "messages": messages}, value.get("model"))


def _prepend_system(system: str | None, messages: list[Json]) -> list[Json]:
    return [{"role": "system", "content": system}, *messages] if system else messages


def _parse_chat(stage: StageCall, value: dict[str, Json]) -> ModelRequest:
    body = _select_body(value)
    messages, system = body.pop("messages", None), body.pop("system", None)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if system is not None and not isinstance(system, str):
        raise _make_input_error(stage, "system", "a string")
    if not isinstance(messages, list) or not messages:
        raise _make_input_error(stage, "messages", "a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _make_input_error(stage, f"messages[{index}]", "an object with a role")
    body["messages"] = _prepend_system(system, messages)
    return ModelRequest("llm:chat", CHAT, body, value.get("model"))


def _parse_embed(stage: StageCall, value: dict[str, Json]) -> ModelRequest:
    body = _select_body(value)
    texts = body.get("input")
    if not (isinstance(texts, str) or (isinstance(texts, list) and all(isinstance(t, str) for t in texts))):
        raise _make_input_error(stage, "input", "a string or a list of strings")
    if not texts or (isinstance(texts, list) and not all(texts)):
        raise _make_input_error(stage, "input", "no empty string and no empty list")
    return ModelRequest("llm:embed", EMBEDDINGS, body, value.get("model"))


def _normalize_input(
    stage: StageCall, value: Json, subject: str, bare_type: type | tuple[type, ...]
) -> dict[str, Json]:
    """Return the input as an object with `subject`, whether it came bare, wrapped or by name."""
    if isinstance(value, bare_type):
        return {subject: value}
    if not isinstance(value, dict):
        raise StageError(
            f"The input of {stage.implementation} is not an object",
            {"path": stage.path, "expected": f"an object with {subject!r}"},
        )
    fields = {key: field for key, field in value.items() if field is not None}
    if subject not in fields:
        wrapped = next((key for key in WRAP_KEYS if isinstance(fields.get(key), bare_type)), None)
        if wrapped is not None:
            fields[subject] = fields.pop(wrapped)
    if fields.get("n", 1) != 1:
        raise _make_input_error(stage, "n", "1: a stage has one answer")
    return fields


def _select_body(fields: dict[str, Json]) -> dict[str, Json]:
    return {key: field for key, field in fields.items() if key not in _SET_BY_GRIDQ}


_SET_BY_GRIDQ = frozenset({"model", "stream", "stream_options", "n"})


def _make_input_error(stage: StageCall, field: str, expected: str, fix: str = "") -> StageError:
    details = {"path": f"{stage.path}.input.{field}", "expected": expected, **({"fix": fix} if fix else {})}
    return StageError(f"The input of {stage.implementation} has no valid {field!r}", details)


M = TypeVar("M", bound=ModelOffer)


class ModelQuery(Protocol):
    """A request, as far as it chooses a model: a name, a list of names, null or `any`."""

    @property
    def model(self) -> Json: ...
    @property
    def wants_embeddings(self) -> bool: ...


def choose_model(
    stage: StageCall, query: ModelQuery, models: Sequence[M], *, in_cooldown: Collection[str] = ()
) -> M:
    """Return the seat's model for the stage: the first that both the effect and the input's `model` allow,
    and that is not in `in_cooldown` if there is one.

    If the effect names several models, or one that stands for others, the queue from which the seat took the
    stage decides, whichever of them the input names. Raises SeatUnavailable if the seat has no model that the
    effect allows, and StageError if the input names a model that the effect does not: the grid then had no
    reason to route the stage to a seat that has it.
    """
    allowed: Sequence[ModelOffer] = models
    name = query.model
    for effect in stage.effects:
        demand = parse_llm_demand(effect)
        if demand is not None:
            allowed = filter_models(demand.find_alternative(stage.queue), allowed)
            name = None if names_alternative(name, demand, stage.queue) else name
    if not allowed:
        raise SeatUnavailable(
            "No model of this seat meets the stage's effects",
            {
                "path": stage.path,
                "expected": "one of " + (", ".join(model.name for model in models) or "none"),
            },
        )
    found = find_models(name, allowed)
    if query.wants_embeddings:
        found = sorted(found, key=lambda model: not model.embeddings)
    if not found:
        raise StageError(
            f"The input names the model {query.model!r}, but the stage's effects do not",
            {
                "path": f"{stage.path}.input.model",
                "expected": "'any', or one of " + ", ".join(model.name for model in allowed),
                "fix": f'declare the effect {{"effect": "Llm", "model": "{query.model}"}}',
            },
        )
    chosen = next((model.name for model in found if model.name not in in_cooldown), found[0].name)
    return next(model for model in models if model.name == chosen)


def extract_text(chunk: dict[str, Json]) -> str:
    """Return the text that a chunk of an answer adds."""
    choice = (chunk.get("choices") or [{}])[0]
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    return text if isinstance(text, str) else ""


def build_output(implementation: str, answer: dict[str, Json]) -> Json:
    """Return the output of `llm:complete` or `llm:chat`. Raises ValueError if the answer has no text."""
    choice = answer["choices"][0]
    fields = choice.get("message") or {"content": choice.get("text")}
    message = {"role": "assistant", "content": ""}
    message |= {key: value for key, value in fields.items() if value is not None}
    if choice.get("finish_reason") is None and not message["content"]:
        raise ValueError("its answer has no content")
    if not isinstance(message["content"], str | list):
        raise ValueError("its content is not text")
    if implementation == "llm:complete":
        return message["content"]
    return {**message, "finish_reason": choice.get("finish_reason")}


def extract_vectors(response: dict[str, Json], is_single: bool) -> Json:
    """Return the vectors of a response in the order of the input, or the one vector if `is_single`."""
    data = sorted(response["data"], key=lambda item: item.get("index", 0))
    vectors = [item["embedding"] for item in data]
    return vectors[0] if is_single else vectors


def complete_embedding_usage(stated: Json, body: dict[str, Json]) -> dict[str, Json]:
    """Return the `usage` of an answer to the embeddings request `body`, estimated if it states none.

    It has no completion tokens: no endpoint charges for the vectors.
    """
    usage = complete_usage(stated, lambda: estimate_tokens(body), 0)
    return {name: usage[name] for name in usage if name != "completion_tokens"}


def estimate_usage(stage: StageCall, value: Json) -> Estimate:
    """Estimate the tokens of a stage: those of its text, and as many for the answer as it may take."""
    if stage.implementation not in (*IMPLEMENTATIONS, API_REQUEST):
        return Estimate()
    fields = value if isinstance(value, dict) else {}
    is_embedding = stage.implementation == "llm:embed"
    default = DEFAULT_ANSWER_TOKENS
    if stage.implementation == API_REQUEST:
        is_embedding = fields.get("path") == EMBEDDINGS
        default = DEFAULT_COMPLETION_TOKENS if fields.get("path") == COMPLETIONS else default
        value = fields = fields["body"] if isinstance(fields.get("body"), dict) else {}
    answer = 0
    if not is_embedding:
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        limit = next((fields[name] for name in names if fields.get(name)), None)
        answer = parse_count(limit) or default
        answer *= parse_count(fields.get("n")) or 1
    return Estimate(tokens_in=estimate_tokens(value), tokens_out=answer)
