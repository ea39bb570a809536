"""Runs a stage at an llm seat's endpoint."""

from __future__ import annotations

from gridq.profiles import StageContext
from gridq.protocol import Json, StageCall, Usage
from workers.profiles.llm.accounting import priced
from workers.profiles.llm.capability import LlmCapability, RemoteModel
from workers.wires import stages
from workers.wires.openai import OpenAIWire


class PricedContext(StageContext):
    """A stage's context whose reports carry the model's price; all else is the context it wraps."""

    def __init__(self, inner: StageContext, model: RemoteModel) -> None:
        super().__init__(job=inner.job, deadline=inner.deadline, emit=inner.emit if inner.streaming else None)
        self._inner = inner
        self._model = model
        inner.on_cancel(self.cancel)

    def report(self, usage: Usage) -> None:
        self.usage = priced(usage, self._model)
        self._inner.report(self.usage)


def run(
    stage: StageCall, value: Json, context: StageContext, wire: OpenAIWire, capability: LlmCapability
) -> Json:
    """Run `stage` with the seat's model that it asks for; `workers.wires.stages` has inputs and outputs."""
    asked = stages.request(stage, value)
    model = stages.choose(stage, asked, capability.models)
    context.check()
    return wire.run(asked, model.name, PricedContext(context, model))
