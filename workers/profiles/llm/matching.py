"""Which demands an llm seat meets."""

from __future__ import annotations

from gridq import queues
from gridq.protocol import Demand
from workers.profiles.llm.capability import LlmCapability
from workers.wires.demand import llm_queues, serving


def queues_of(capability: LlmCapability) -> list[str]:
    return llm_queues(capability.models)


def matches(demand: Demand, capability: LlmCapability) -> bool:
    return bool(serving(demand, capability.models))


def families_of(capability: LlmCapability) -> dict[str, list[str]]:
    """Queue → the names by which budgets may call the model that serves it here: its own, its families'."""
    found: dict[str, list[str]] = {}
    for model in capability.models:
        served = llm_queues([model])
        names = [queues.slug(name) for name in dict.fromkeys((model.name, *model.families))]
        for queue in served:
            found.setdefault(queue, names)
    return found
