"""Which demands an llm seat meets."""

from __future__ import annotations

from gridq.protocol.models import Demand
from workers.model_apis.demand import list_llm_queues, filter_models
from workers.profiles.llm.capability import LlmCapability


def queues_of(capability: LlmCapability) -> list[str]:
    return list_llm_queues(capability.models)


def matches(demand: Demand, capability: LlmCapability) -> bool:
    return bool(filter_models(demand, capability.models))
