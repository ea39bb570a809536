"""Runs a stage at an llm seat: at its endpoint, or by its program."""

from __future__ import annotations

from gridq.profiles import StageContext
from gridq.protocol import Json, StageCall
from workers.profiles.llm.accounting import charged
from workers.profiles.llm.capability import LlmCapability
from workers.wires import asking, stages
from workers.wires.accounted import AccountedContext
from workers.wires.passing import Speaker


def run(
    stage: StageCall, value: Json, context: StageContext, wire: Speaker, capability: LlmCapability
) -> Json:
    """Run `stage` with the seat's model that it asks for.

    Inputs and outputs: `workers.wires.stages` and `workers.wires.asked`.
    """
    asked = asking.read(stage, value)
    model = stages.choose(stage, asked, capability.models)
    context.check()
    accounted = AccountedContext(context, lambda usage: charged(usage, model, capability))
    return asking.run(asked, model.name, accounted, wire)
