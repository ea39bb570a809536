"""Which demands an llm seat meets."""

from __future__ import annotations

from gridq.protocol import Demand
from workers.profiles.llm.capability import LlmCapability
from workers.wires.demand import llm_queues, serving


def queues_of(capability: LlmCapability) -> list[str]:
    return llm_queues(capability.models)


def matches(demand: Demand, capability: LlmCapability) -> bool:
    return bool(serving(demand, capability.models))
