"""The `Llm` effect and the queues that serve it: the one place where a model's name becomes a queue.

`llm:<model>` is the model's exact name; `llm:<family>` exists only where a model declares that family (a
prefix never counts: `gpt-4` must not reach `gpt-4-turbo`); `llm:any` is reserved for "whichever model the
seat likes best".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from gridq.errors import InvalidField
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, Effect
from workers.model_apis.model_catalogue import ModelOffer

EFFECT = "Llm"
KIND = "llm"
ANY = "any"


MAX_MODELS = 8
"""Models that one stage may name, the first it would rather have and those it makes do with."""


@lru_cache(maxsize=4096)
def _queue(name: str) -> str:
    return queue_names.capability(KIND, name)


def parse_llm_demand(effect: Effect) -> Demand | None:
    """What `{"effect": "Llm", "model"?, "context"?, "embeddings"?}` needs; None for any other effect.

    No model, null and `any` all mean `llm:any`. `model` may be a list: the first of them that a seat can
    take; each is a name, or `{"model", "context"?}` where one of them needs more or less than the others.
    `context` (tokens, at least) and `embeddings` (true) narrow the seats further. InvalidField names the
    field that is wrong.
    """
    if effect.effect != EFFECT:
        return None
    fields = effect.fields
    models = fields.get("model")
    embeddings = {"embeddings": True} if fields.get("embeddings") else {}
    context = _context(fields.get("context"), "effects.context")
    if not isinstance(models, list):
        return Demand(queue=_named(models, "effects.model"), needs={**context, **embeddings})
    if not 1 <= len(models) <= MAX_MODELS:
        raise InvalidField(
            f"An Llm effect's model is a list of {len(models)}",
            {"path": "effects.model", "expected": f"1 to {MAX_MODELS} models, the best first"},
        )
    links: list[Demand] = []
    for number, told in enumerate(models):
        name, path, own = _link(told, f"effects.model[{number}]", context)
        queue = _named(name, path)
        if any(queue == other.queue for other in links):
            raise InvalidField(
                f"An Llm effect names the model {name!r} twice",
                {"path": path, "expected": "each model once", "fix": "leave it out"},
            )
        links.append(Demand(queue=queue, needs={**own, **embeddings}))
    return links[0].model_copy(update={"fallbacks": tuple(links[1:])})


def _link(told: object, path: str, context: dict[str, int]) -> tuple[object, str, dict[str, int]]:
    """(its name, the name's path, what context it needs) of one of several models."""
    if told is None:
        raise _no_name(path)
    if not isinstance(told, dict):
        return told, path, context
    unknown = sorted(set(told) - {"model", "context"})
    if unknown:
        raise InvalidField(
            f"A model of an Llm effect has no field {unknown[0]!r}",
            {"path": f"{path}.{unknown[0]}", "expected": "model and context"},
        )
    if "context" in told:
        context = _context(told["context"], f"{path}.context")
    return told.get("model"), f"{path}.model", context


def _named(model: object, path: str) -> str:
    """The queue of a model's name; of none at all `llm:any`."""
    if model is None:
        model = ANY
    if not isinstance(model, str) or not model.strip():
        raise _no_name(path)
    return _queue(model.strip())


def _no_name(path: str) -> InvalidField:
    return InvalidField(
        "An Llm effect's model is not a name",
        {"path": path, "expected": "a model's name, a family's or 'any', or several", "fix": "use 'any'"},
    )


def _context(context: object, path: str) -> dict[str, int]:
    if context is None:
        return {}
    if not isinstance(context, int) or isinstance(context, bool) or context < 1:
        raise InvalidField(
            "An Llm effect's context is not a number of tokens",
            {"path": path, "expected": "an integer of at least 1"},
        )
    return {"context": context}


def list_llm_queues(models: Iterable[ModelOffer]) -> list[str]:
    """Every queue that a seat with `models` serves: exact names, then families, then `llm:any`; [] without a
    model.
    """
    models = list(models)
    if not models:
        return []
    names = [model.name for model in models]
    families = [family for model in models for family in model.families]
    return list(dict.fromkeys(map(_queue, [*names, *families, ANY])))


def list_families_by_queue(models: Iterable[ModelOffer]) -> dict[str, list[str]]:
    """Queue → the names by which budgets may call the model that serves it here: its own, its families'."""
    found: dict[str, list[str]] = {}
    for model in models:
        names = [queue_names.slug(name) for name in dict.fromkeys((model.name, *model.families))]
        for queue in list_llm_queues([model]):
            found.setdefault(queue, names)
    return found


def filter_models(demand: Demand, models: Iterable[ModelOffer]) -> list[ModelOffer]:
    """Those of `models` that meet `demand`, in the seat's own order of preference."""
    return [
        model
        for model in models
        if demand.queue in list_llm_queues([model])
        and (model.context is None or model.context >= demand.needs.get("context", 0))
        and (model.embeddings or not demand.needs.get("embeddings"))
    ]


def describe_model_shortfall(demand: Demand, models: Sequence[ModelOffer]) -> str:
    """In words what a seat with `models` lacks for `demand`; empty where one of them meets it."""
    if filter_models(demand, models):
        return ""
    called = [model for model in models if demand.queue in list_llm_queues([model])]
    if not called:
        return f"it does not serve {demand.queue}"
    if demand.needs.get("embeddings"):
        called = [model for model in called if model.embeddings]
        if not called:
            return "it has no model of that name that gives embeddings"
    return f"its context is {max(model.context or 0 for model in called)} tokens"


def find_models(name: object, models: Sequence[ModelOffer]) -> list[ModelOffer]:
    """Those of `models` that a request's `model` field may mean: all for nothing or `any`, else by name or
    family; of a list by the first of its names that one of them has.
    """
    if name is None or name == ANY:
        return list(models)
    if isinstance(name, list):
        found = (find_models(_name_in(each), models) for each in name if each is not None)
        return next((some for some in found if some), [])
    if not isinstance(name, str) or not name.strip():
        return []
    return [model for model in models if _queue(name.strip()) in list_llm_queues([model])]


def names_link(name: object, demand: Demand) -> bool:
    """Whether a request's `model` field names one of the models that its stage makes do with."""
    names = map(_name_in, name) if isinstance(name, list) else (name,)
    called = {_queue(each.strip()) for each in names if isinstance(each, str) and each.strip()}
    return bool(demand.fallbacks) and not called.isdisjoint(link.queue for link in demand.links)


def _name_in(link: object) -> object:
    return link.get("model") if isinstance(link, dict) else link
