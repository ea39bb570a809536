"""The bench profile with one stage more, whose runs are witnessed."""

from __future__ import annotations

from gridq.profiles import StageContext
from gridq.protocol import Json, StageCall
from gridq.testing import FakeProfile
from workers.chaos.witness import work

CENTS = 0.05
"""What a run of the stage is said to cost: 500 micro-dollars, of which it uses what its orders say."""


class ChaosProfile(FakeProfile):
    """The kind `bench`, for `gridq chaos`: a seat of it also runs `chaos_seat`."""

    def stages(self) -> list[dict[str, Json]]:
        return [
            *super().stages(),
            {
                "name": "chaos_seat",
                "implementation": "bench:witnessed",
                "input": {"kind": "Any"},
                "output": {"kind": "Any"},
                "effects": [{"effect": "Bench"}, {"effect": "Cost", "cents": CENTS}],
            },
        ]

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation != "bench:witnessed":
            return super().run(stage, value, context)
        context.check()
        return work(value, context)
