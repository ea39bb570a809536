"""Runs a stage at an llm seat: at its endpoint, or by its program."""

from __future__ import annotations

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from workers.model_apis import running, stages
from workers.model_apis.accounting import AccountedContext
from workers.model_apis.forwarding import Speaker
from workers.profiles.llm.accounting import charged
from workers.profiles.llm.capability import LlmCapability


def run(
    stage: StageCall, value: Json, context: StageContext, api: Speaker, capability: LlmCapability
) -> Json:
    """Run `stage` with the seat's model that it asks for.

    Inputs and outputs: `workers.model_apis.stages` and `workers.model_apis.request`.
    """
    asked = running.read(stage, value)
    model = stages.choose(stage, asked, capability.models)
    context.check()
    accounted = AccountedContext(context, lambda usage: charged(usage, model, capability))
    return running.run(asked, model.name, accounted, api)
