"""The bench profile with additional stages, whose runs are witnessed."""

from __future__ import annotations

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Estimate, Json, StageCall
from tests.chaos.witness import tokens, work
from tests.fakes.bench_profile import BenchProfile

PROFILE = "tests.chaos.profile:ChaosProfile"
"""The profile's name in `GRIDQ_PROFILES`."""

CENTS = 0.05
"""The declared cost of a run: 500 micro-dollars, of which it uses what its orders say."""
MAX_MICRO_DOLLARS = round(CENTS * 10_000)
"""The same in micro-dollars."""

RARE = "rare"
"""The slug that the seats of one machine serve in addition to `any`."""

SEATED = frozenset({"chaos_seat", "chaos_rare"})
"""The stages that bench seats run."""


class ChaosProfile(BenchProfile):
    """The kind `bench` with the stages `chaos_seat` and `chaos_rare`, which prefers a seat of
    `bench:rare`.
    """

    def stages(self) -> list[dict[str, Json]]:
        asks = {"chaos_seat": "any", "chaos_rare": [RARE, "any"]}
        return [
            *super().stages(),
            *(
                {
                    "name": name,
                    "implementation": "bench:witnessed",
                    "input": {"kind": "Any"},
                    "output": {"kind": "Any"},
                    "effects": [{"effect": "Bench", "slug": slug}, {"effect": "Cost", "cents": CENTS}],
                }
                for name, slug in asks.items()
            ),
        ]

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        """Return the most that a run can use."""
        if stage.implementation != "bench:witnessed":
            return super().estimate(stage, value)
        return Estimate(
            micro_dollars=MAX_MICRO_DOLLARS,
            tokens_in=tokens(MAX_MICRO_DOLLARS)[0],
            tokens_out=tokens(MAX_MICRO_DOLLARS)[1],
        )

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation != "bench:witnessed":
            return super().run(stage, value, context)
        context.check()
        return work(value, context)
