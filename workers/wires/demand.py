"""The `Llm` effect and the queues that serve it: the one place where a model's name becomes a queue.

`llm:<model>` is the model's exact name; `llm:<family>` exists only where a model declares that family (a
prefix never counts: `gpt-4` must not reach `gpt-4-turbo`); `llm:any` is reserved for "whichever model the
seat likes best".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from gridq import queues
from gridq.errors import InvalidField
from gridq.protocol import Demand, Effect
from workers.wires.models import ModelOffer

EFFECT = "Llm"
KIND = "llm"
ANY = "any"


@lru_cache(maxsize=4096)
def _queue(name: str) -> str:
    return queues.capability(KIND, name)


def llm_demand(effect: Effect) -> Demand | None:
    """What `{"effect": "Llm", "model"?, "context"?, "embeddings"?}` needs; None for any other effect.

    No model, null and `any` all mean `llm:any`. `context` (tokens, at least) and `embeddings` (true) narrow
    the seats further. InvalidField names the field that is wrong.
    """
    if effect.effect != EFFECT:
        return None
    fields = effect.fields
    model = fields.get("model")
    if model is None:
        model = ANY
    if not isinstance(model, str) or not model.strip():
        raise InvalidField(
            "An Llm effect's model is not a name",
            {"path": "effects.model", "expected": "a model's name, a family's or 'any'", "fix": "use 'any'"},
        )
    needs: dict[str, int | bool] = {}
    context = fields.get("context")
    if context is not None:
        if not isinstance(context, int) or isinstance(context, bool) or context < 1:
            raise InvalidField(
                "An Llm effect's context is not a number of tokens",
                {"path": "effects.context", "expected": "an integer of at least 1"},
            )
        needs["context"] = context
    if fields.get("embeddings"):
        needs["embeddings"] = True
    return Demand(queue=_queue(model.strip()), needs=needs)


def llm_queues(models: Iterable[ModelOffer]) -> list[str]:
    """Every queue that a seat with `models` serves: exact names, then families, then `llm:any`; [] without a
    model.
    """
    models = list(models)
    if not models:
        return []
    names = [model.name for model in models]
    families = [family for model in models for family in model.families]
    return list(dict.fromkeys(map(_queue, [*names, *families, ANY])))


def serving(demand: Demand, models: Iterable[ModelOffer]) -> list[ModelOffer]:
    """Those of `models` that meet `demand`, in the seat's own order of preference."""
    return [
        model
        for model in models
        if demand.queue in llm_queues([model])
        and (model.context is None or model.context >= demand.needs.get("context", 0))
        and (model.embeddings or not demand.needs.get("embeddings"))
    ]


def lack(demand: Demand, models: Sequence[ModelOffer]) -> str:
    """In words what a seat with `models` lacks for `demand`; empty where one of them meets it."""
    if serving(demand, models):
        return ""
    called = [model for model in models if demand.queue in llm_queues([model])]
    if not called:
        return f"it does not serve {demand.queue}"
    if demand.needs.get("embeddings"):
        called = [model for model in called if model.embeddings]
        if not called:
            return "it has no model of that name that gives embeddings"
    return f"its context is {max(model.context or 0 for model in called)} tokens"


def named(name: object, models: Sequence[ModelOffer]) -> list[ModelOffer]:
    """Those of `models` that a request's `model` field may mean: all for nothing or `any`, else by name or
    family.
    """
    if name is None or name == ANY:
        return list(models)
    if not isinstance(name, str) or not name.strip():
        return []
    return [model for model in models if _queue(name.strip()) in llm_queues([model])]
