"""A profile of our own: machines that know the weather of one city are a new kind of capability.

A stage with the effect `Weather` waits in the queue `weather:<city>` until a seat that knows the city runs
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel

from gridq import Profile, StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, Effect, Json, ProbeReport, SeatOffer, StageCall


class City(BaseModel):
    """The capability of a seat: the city that it knows."""

    city: str


class WeatherProfile(Profile):
    """The kind `weather`."""

    kind: ClassVar[str] = "weather"
    Capability: ClassVar[type[BaseModel]] = City

    def queues(self, capability: Any) -> list[str]:
        """Return the queues that a seat serves."""
        return [queue_names.make_queue_name(self.kind, capability.city)]

    def demand(self, effect: Effect) -> Demand | None:
        """Return the queue that a stage needs for `effect`; None if another profile owns the effect."""
        if effect.effect != "Weather":
            return None
        return Demand(queue=queue_names.make_queue_name(self.kind, effect.fields["city"]))

    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        """Return whether a seat may take a stage with this demand."""
        return demand.queue in self.queues(capability)

    def probe(self, config: Mapping[str, Json]) -> ProbeReport:
        """Return the seats of this machine. `config` is the table `[weather]` of its seats file."""
        city = config.get("city")
        if not city:
            return ProbeReport(missing=["The table [weather] names no city"])
        return ProbeReport(found=[SeatOffer(name="weather", kind=self.kind, capability={"city": city})])

    def stages(self) -> list[dict[str, Json]]:
        """Return the stages that come with the profile."""
        return [
            {
                "name": "forecast",
                "implementation": "weather:forecast",
                "input": {"kind": "Any"},
                "output": {"kind": "Any"},
                "effects": [{"effect": "Weather", "city": {"$config": "city"}}],
            }
        ]

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run one stage: its input in, its output out."""
        return f"Rain in {stage.effects[0].fields['city']}"
