"""Map the `Llm` effect and the models of a seat to queues.

No other module turns a model's name into a queue.

`llm:<model>` is the queue of an exact name. `llm:<family>` exists only if a model declares that family; a
prefix never counts, since `gpt-4` must not reach `gpt-4-turbo`. `llm:any` is reserved for "the model that
the seat prefers", among those that write text; `llm:any/embeddings` (escaped) for the same among those with
embeddings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from gridq.errors import InvalidField
from gridq.profiles.profile import check_effect_fields
from gridq.protocol import queue_names
from gridq.protocol.betas import takes_beta
from gridq.protocol.models import Demand, Effect, Json
from gridq.protocol.queue_names import ANY_EMBEDDINGS, ANY_MODEL, LLM
from workers.model_apis.model_catalogue import ModelOffer

EFFECT = "Llm"
FIELDS = ("model", "context", "embeddings", "responses", "betas")
"""The fields of an `Llm` effect."""

NO_EMBEDDINGS = (
    "its model has no embeddings; if it does have them, set `embeddings = true` for it in its table"
)

NO_RESPONSES = "its endpoint has no Responses API; if it does have it, set `responses = true` in its table"

MAX_MODELS = 8
"""Models that one stage may name: the preferred one and its fallbacks."""


@lru_cache(maxsize=4096)
def _make_queue(name: str) -> str:
    return queue_names.make_queue_name(LLM, name)


def parse_llm_demand(effect: Effect) -> Demand | None:
    """Return the demand of `{"effect": "Llm", "model"?, "context"?, "embeddings"?, "responses"?, "betas"?}`,
    None for another effect.

    A missing model, null and `any` all mean `llm:any`. `model` may be a list, of which the first that a seat
    can serve is used. An item is a name, or `{"model", "context"?}` if its context differs from the rest.
    `context` (a minimum, in tokens), `embeddings` and `responses` (true) and `betas` (names) restrict the
    seats further. Raises InvalidField naming the wrong field.
    """
    if effect.effect != EFFECT:
        return None
    check_effect_fields(effect, FIELDS)
    fields = effect.fields
    models = fields.get("model")
    uses: dict[str, Json] = {use: True for use in ("embeddings", "responses") if fields.get(use)}
    uses |= _parse_betas(fields.get("betas"))
    context = _parse_context(fields.get("context"), "effects.context")
    if not isinstance(models, list):
        demand = Demand(queue=_parse_queue(models, "effects.model"), needs={**context, **uses})
        if "embeddings" in uses and demand.queue == _make_queue(ANY_MODEL):
            # the seats of `llm:any` have no embeddings, or serve the first queue too; they give the reason
            fallbacks = (demand,)
            return demand.model_copy(update={"queue": _make_queue(ANY_EMBEDDINGS), "fallbacks": fallbacks})
        return demand
    if not 1 <= len(models) <= MAX_MODELS:
        raise InvalidField(
            f"An Llm effect lists {len(models)} models",
            {"path": "effects.model", "expected": f"1 to {MAX_MODELS} models, the preferred one first"},
        )
    alternatives: list[Demand] = []
    for number, item in enumerate(models):
        name, path, needs = _parse_alternative(item, f"effects.model[{number}]", context)
        queue = _parse_queue(name, path)
        if any(queue == other.queue for other in alternatives):
            raise InvalidField(
                f"An Llm effect names the model {name!r} twice",
                {"path": path, "expected": "each model once", "fix": "remove it"},
            )
        alternatives.append(Demand(queue=queue, needs={**needs, **uses}))
    return alternatives[0].model_copy(update={"fallbacks": tuple(alternatives[1:])})


def _parse_alternative(
    item: object, path: str, context: dict[str, int]
) -> tuple[object, str, dict[str, int]]:
    """Return the name, the name's path and the needed context of one of several models."""
    if item is None:
        raise _make_name_error(path)
    if not isinstance(item, dict):
        return item, path, context
    unknown = sorted(set(item) - {"model", "context"})
    if unknown:
        raise InvalidField(
            f"A model of an Llm effect has no field {unknown[0]!r}",
            {"path": f"{path}.{unknown[0]}", "expected": "model and context"},
        )
    if "context" in item:
        context = _parse_context(item["context"], f"{path}.context")
    return item.get("model"), f"{path}.model", context


def _parse_queue(model: object, path: str) -> str:
    """Return the queue of a model's name, `llm:any` for None."""
    if model is None:
        model = ANY_MODEL
    if not isinstance(model, str) or not model.strip():
        raise _make_name_error(path)
    return _make_queue(model.strip())


def _make_name_error(path: str) -> InvalidField:
    return InvalidField(
        "An Llm effect's model is not a name",
        {"path": path, "expected": "a model, a family, 'any', or a list of models", "fix": "use 'any'"},
    )


def _parse_context(context: object, path: str) -> dict[str, int]:
    if context is None:
        return {}
    if not isinstance(context, int) or isinstance(context, bool) or context < 1:
        raise InvalidField(
            "An Llm effect's context is not a number of tokens",
            {"path": path, "expected": "an integer of at least 1"},
        )
    return {"context": context}


def _parse_betas(betas: object) -> dict[str, Json]:
    if betas is None:
        return {}
    if not isinstance(betas, list) or not all(isinstance(beta, str) for beta in betas):
        raise InvalidField(
            "An Llm effect's betas are not a list of names",
            {"path": "effects.betas", "expected": "a list of names as in the header anthropic-beta"},
        )
    return {"betas": betas} if betas else {}


def list_llm_queues(models: Iterable[ModelOffer]) -> list[str]:
    """Return every queue that a seat with `models` serves: exact names, then families, then `llm:any` if one
    of them takes requests for `any`, then that of `any` with embeddings if one has them.
    """
    models = list(models)
    names = [model.name for model in models]
    families = [family for model in models for family in model.families]
    anything = [ANY_MODEL] if any(model.any for model in models) else []
    anything += [ANY_EMBEDDINGS] if any(model.embeddings for model in models) else []
    return list(dict.fromkeys(map(_make_queue, [*names, *families, *anything])))


def list_warm_queues(models: Iterable[ModelOffer], loaded: Collection[str]) -> list[str]:
    """Return the queues whose first model, in the seat's order of preference, is one of `loaded`."""
    first: dict[str, str] = {}
    for model in models:
        for queue in list_llm_queues([model]):
            first.setdefault(queue, model.name)
    return [queue for queue, name in first.items() if name in loaded]


def list_families_by_queue(models: Iterable[ModelOffer]) -> dict[str, list[str]]:
    """Map each queue to the names that budgets may use for its model: its own name and its families."""
    families: dict[str, list[str]] = {}
    for model in models:
        names = [queue_names.make_slug(name) for name in dict.fromkeys((model.name, *model.families))]
        for queue in list_llm_queues([model]):
            families.setdefault(queue, names)
    return families


def filter_models(demand: Demand, models: Iterable[ModelOffer]) -> list[ModelOffer]:
    """Return those of `models` that meet `demand`, in the seat's own order of preference."""
    return [
        model
        for model in models
        if _serves(model, demand)
        and (model.context is None or model.context >= demand.needs.get("context", 0))
        and (model.embeddings or not demand.needs.get("embeddings"))
        and (model.responses or not demand.needs.get("responses"))
        and not _find_missing_beta(model, demand)
    ]


def _find_missing_beta(model: ModelOffer, demand: Demand) -> str:
    """Return the first beta of the demand that the model's seat does not take, "" if there is none."""
    return next((beta for beta in demand.needs.get("betas", ()) if not takes_beta(model.betas, beta)), "")


def _serves(model: ModelOffer, demand: Demand) -> bool:
    """Return whether requests for the demand's queue may go to `model`. `any` stands for a model that writes
    text, and for one with embeddings if the demand needs those.
    """
    is_embedding_any = (
        model.embeddings and demand.needs.get("embeddings") and demand.queue == _make_queue(ANY_MODEL)
    )
    return bool(is_embedding_any) or demand.queue in list_llm_queues([model])


def explain_model_mismatch(demand: Demand, models: Sequence[ModelOffer]) -> str:
    """Say why a seat with `models` does not meet `demand`. Return "" if it does."""
    if filter_models(demand, models):
        return ""
    candidates = [model for model in models if _serves(model, demand)]
    if not candidates:
        return f"it does not serve {demand.queue}"
    if demand.needs.get("embeddings"):
        candidates = [model for model in candidates if model.embeddings]
        if not candidates:
            return NO_EMBEDDINGS
    if demand.needs.get("responses"):
        candidates = [model for model in candidates if model.responses]
        if not candidates:
            return NO_RESPONSES
    missing = [_find_missing_beta(model, demand) for model in candidates]
    if all(missing):
        has_betas = any(model.betas is not None for model in candidates)
        return explain_missing_beta(min(missing), has_betas=has_betas)
    return f"its context is {max(model.context or 0 for model in candidates)} tokens"


def explain_missing_beta(beta: str, *, has_betas: bool) -> str:
    """Say why a seat does not take `beta`, and what would help."""
    if not has_betas:
        return f"its endpoint has no betas of Anthropic's API, and the request needs {beta}"
    return f"it does not allow the beta {beta}; its owner can add it to `betas` in its table"


def find_models(name: object, models: Sequence[ModelOffer]) -> list[ModelOffer]:
    """Return those of `models` that a request's `model` field names, by name or family.

    None and `any` name all of them. A list names those of its first item that one of them has.
    """
    if name is None or name == ANY_MODEL:
        return list(models)
    if isinstance(name, list):
        matches = (find_models(_get_name(each), models) for each in name if each is not None)
        return next((found for found in matches if found), [])
    if not isinstance(name, str) or not name.strip():
        return []
    return [model for model in models if _make_queue(name.strip()) in list_llm_queues([model])]


def names_alternative(name: object, demand: Demand, queue: str) -> bool:
    """Return whether a request's `model` field names one of the models of `demand`, of which `queue` decides:
    there are several, or `queue` is that of a model for which one stands.
    """
    names = map(_get_name, name) if isinstance(name, list) else (name,)
    queues = {_make_queue(each.strip()) for each in names if isinstance(each, str) and each.strip()}
    known = {link.queue for link in demand.alternatives}
    is_alias = bool(queue) and queue not in known
    return (bool(demand.fallbacks) or is_alias) and not queues.isdisjoint(known)


def _get_name(item: object) -> object:
    return item.get("model") if isinstance(item, dict) else item
