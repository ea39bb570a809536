"""Run a stage on an llm seat: at its endpoint, or with its program."""

from __future__ import annotations

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from workers.model_apis import stage_runner, stages
from workers.model_apis.backend import Backend
from workers.model_apis.priced_context import PricedContext
from workers.profiles.llm.capability import LlmCapability
from workers.profiles.llm.costs import add_cost


def run_stage(
    stage: StageCall, value: Json, context: StageContext, backend: Backend, capability: LlmCapability
) -> Json:
    """Run `stage` on the seat's model that it names, and return its output.

    `workers.model_apis.stages` and `workers.model_apis.api_request` describe inputs and outputs.
    """
    request = stage_runner.parse_stage_input(stage, value)
    model = stages.choose_model(stage, request, capability.models)
    context.check()
    priced = PricedContext(context, lambda usage: add_cost(usage, model, capability))
    return stage_runner.run_request(request, model.name, priced, backend)
