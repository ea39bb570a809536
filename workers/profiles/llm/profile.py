"""The llm profile: model endpoints on other machines, and vendors' programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from gridq.errors import GridError, SeatDegraded, SeatUnavailable
from gridq.profiles.metric_keys import format_metric
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol.models import Demand, Effect, Estimate, Json, ProbeReport, StageCall
from gridq.protocol.queue_names import LLM
from workers.model_apis import stages
from workers.model_apis.context_wrappers import PricedContext
from workers.model_apis.demand import (
    explain_model_mismatch,
    filter_models,
    list_families_by_queue,
    list_llm_queues,
    parse_llm_demand,
)
from workers.model_apis.http.api_client import ApiClient
from workers.model_apis.stage_runner import parse_stage_input, run_request
from workers.profiles.llm import costs
from workers.profiles.llm.capability import LlmCapability, LlmSeat
from workers.profiles.llm.credentials import open_client
from workers.profiles.llm.probe import probe
from workers.profiles.llm.programs.backend import ProgramBackend
from workers.profiles.llm.programs.program_seats import is_program_table
from workers.profiles.llm.programs.seat_table import ProgramSeat, make_login


class LlmProfile(Profile):
    """A seat is one login at one endpoint or program.

    Its queues are its models, their families and `llm:any`.
    """

    kind: ClassVar[str] = LLM
    Capability: ClassVar[type[BaseModel]] = LlmCapability
    metric_helps: ClassVar[Mapping[str, str]] = {
        "api_calls_total": "Calls of the seat's endpoint, since the worker's start.",
        "api_failures_total": "Calls of the seat's endpoint that failed, since the worker's start.",
        "jobs_routed_total": "Stages that went to the seat's program, since the worker's start.",
        "jobs_failed_total": "Stages that failed at the seat's program, since the worker's start.",
    }

    def __init__(self) -> None:
        self._backend: ApiClient | ProgramBackend | None = None
        self._capability: LlmCapability | None = None
        self._calls = 0
        self._failures = 0

    def queues(self, capability: BaseModel) -> list[str]:
        assert isinstance(capability, LlmCapability)
        return list_llm_queues(capability.models)

    def demand(self, effect: Effect) -> Demand | None:
        return parse_llm_demand(effect)

    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        assert isinstance(capability, LlmCapability)
        return bool(filter_models(demand, capability.models))

    def explain_mismatch(self, demand: Demand, capability: BaseModel) -> str:
        assert isinstance(capability, LlmCapability)
        return explain_model_mismatch(demand, capability.models)

    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        return probe(config)

    def open(self, capability: BaseModel, config: Mapping[str, Json]) -> None:
        """Read the key and create the backend, which sends nothing yet.

        Raises ConfigError if the key is missing.
        """
        assert isinstance(capability, LlmCapability)
        self._capability = capability
        if is_program_table(config):
            self._backend = ProgramBackend(make_login(ProgramSeat.model_validate(config)))
        else:
            self._backend = open_client(LlmSeat.model_validate(config))

    def keeps_prompts(self, config: Mapping[str, Json]) -> bool:
        """Return True for an endpoint: vendors keep the prompts of an account. A program's are its own."""
        return not is_program_table(config)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Send a model stage to the seat's endpoint or program. Return the answer in the caller's format."""
        if self._backend is None or self._capability is None:
            parse_stage_input(stage, value)
            raise SeatUnavailable("The llm seat is not open", {"path": stage.path})
        self._calls += 1
        try:
            return self._run(stage, value, context, self._backend, self._capability)
        except GridError as error:
            self._failures += 1
            error.details.setdefault("path", stage.path)
            raise

    def _run(
        self,
        stage: StageCall,
        value: Json,
        context: StageContext,
        backend: ApiClient | ProgramBackend,
        capability: LlmCapability,
    ) -> Json:
        request = parse_stage_input(stage, value)
        model = stages.choose_model(stage, request, capability.models, in_cooldown=context.models_in_cooldown)
        context.check()
        context.use_model(model.name)
        priced = PricedContext(context, lambda usage: costs.add_cost(usage, model, capability))
        return run_request(request, model.name, priced, backend)

    def stamp_login(self) -> str:
        """Return a hash of the key as its file has it now, or when the program's login was last written.

        A key of the environment stays what it was when the worker started.
        """
        backend = self._backend
        if isinstance(backend, ProgramBackend):
            return backend.stamp_login()
        try:
            return "" if backend is None else backend.hash_key()
        except SeatDegraded as error:  # the key file is gone, or empty
            return error.message

    def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        """Estimate the tokens, and their cost at the open seat's most expensive model.

        The cost is 0 if no seat is open.
        """
        estimate = stages.estimate_usage(stage, value)
        models = self._capability.models if self._capability else ()
        cost = costs.estimate_max_cost(models, estimate.tokens_in, estimate.tokens_out)
        return estimate.model_copy(update={"micro_dollars": cost})

    def exclude_models(self, capability: BaseModel, models: Collection[str]) -> BaseModel | None:
        assert isinstance(capability, LlmCapability)
        left = tuple(model for model in capability.models if model.name not in models)
        return capability.model_copy(update={"models": left}) if left else None

    def families(self, capability: BaseModel) -> dict[str, list[str]]:
        """Return for each queue the name and the families of the model that the seat prefers for it."""
        assert isinstance(capability, LlmCapability)
        return list_families_by_queue(capability.models)

    def prices(self, capability: BaseModel) -> tuple[int, int] | None:
        assert isinstance(capability, LlmCapability)
        return costs.find_highest_prices(capability)

    def metrics(self) -> dict[str, float]:
        """Return the calls to an endpoint, or the stages that went to a program, and those that failed."""
        if self._capability is None:
            return {}
        provider = self._capability.host
        calls, failures = (
            ("jobs_routed_total", "jobs_failed_total")
            if isinstance(self._backend, ProgramBackend)
            else ("api_calls_total", "api_failures_total")
        )
        return {
            format_metric(calls, provider=provider): float(self._calls),
            format_metric(failures, provider=provider): float(self._failures),
        }
