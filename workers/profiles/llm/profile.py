"""The profile of model endpoints on other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from gridq.errors import GridError, SeatUnavailable
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol.models import Demand, Effect, Estimate, Json, ProbeReport, StageCall
from workers.model_apis import stages
from workers.model_apis.demand import lack, llm_demand, llm_families
from workers.model_apis.http.endpoint import EndpointApi
from workers.model_apis.running import read
from workers.profiles.llm import accounting, matching, runner
from workers.profiles.llm.capability import LlmCapability, LlmSeat
from workers.profiles.llm.credentials import opened
from workers.profiles.llm.probe import KIND, probe
from workers.profiles.llm.programs.backend import CliSpeaker
from workers.profiles.llm.programs.program_seats import is_cli
from workers.profiles.llm.programs.table import CliSeat, login


class LlmProfile(Profile):
    """A seat is one login at one endpoint; its models, their families and `llm:any` are its queues."""

    kind: ClassVar[str] = KIND
    Capability: ClassVar[type[BaseModel]] = LlmCapability

    def __init__(self) -> None:
        self._api: EndpointApi | CliSpeaker | None = None
        self._capability: LlmCapability | None = None
        self._calls = 0
        self._failures = 0

    def queues(self, capability: BaseModel) -> list[str]:
        assert isinstance(capability, LlmCapability)
        return matching.queues_of(capability)

    def demand(self, effect: Effect) -> Demand | None:
        return llm_demand(effect)

    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        assert isinstance(capability, LlmCapability)
        return matching.matches(demand, capability)

    def shortfall(self, demand: Demand, capability: BaseModel) -> str:
        assert isinstance(capability, LlmCapability)
        return lack(demand, capability.models)

    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        return probe(config)

    def open(self, capability: BaseModel, config: Mapping[str, Json]) -> None:
        """Read the key and make the API format ready; nothing is sent yet. ConfigError: the key is not there."""
        assert isinstance(capability, LlmCapability)
        self._capability = capability
        if is_cli(config):
            self._api = CliSpeaker(login(CliSeat.model_validate(config)))
        else:
            self._api = opened(LlmSeat.model_validate(config))

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if self._api is None or self._capability is None:
            read(stage, value)
            raise SeatUnavailable("The llm seat is not open", {"path": stage.path})
        self._calls += 1
        try:
            output = runner.run(stage, value, context, self._api, self._capability)
        except GridError as error:
            self._failures += 1
            error.details.setdefault("path", stage.path)
            raise
        return output

    def close(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            api.close()

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        """Tokens by rule of thumb; their cost at the open seat's dearest model, nothing where no seat is
        open.
        """
        found = stages.estimate(stage, value)
        models = self._capability.models if self._capability else ()
        cost = accounting.dearest(models, found.tokens_in, found.tokens_out)
        return found.model_copy(update={"micro_dollars": cost})

    def families(self, capability: BaseModel) -> dict[str, list[str]]:
        """Of the model that the seat likes best for a queue: its name and families."""
        assert isinstance(capability, LlmCapability)
        return llm_families(capability.models)

    def prices(self, capability: BaseModel) -> tuple[int, int] | None:
        assert isinstance(capability, LlmCapability)
        return accounting.dearest_prices(capability)

    def metrics(self) -> dict[str, float]:
        return {"calls": float(self._calls), "failures": float(self._failures)}
