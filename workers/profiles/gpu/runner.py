"""Run a stage on a model of the seat's device."""

from __future__ import annotations

from collections.abc import Callable

from gridq.config.settings import settings
from gridq.errors import ModelFileError, SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from workers.model_apis import stage_runner, stages
from workers.model_apis.context_wrappers import PricedContext
from workers.model_apis.demand import list_llm_queues, list_warm_queues
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.backend import EngineBackend
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.loaded_models import LoadedModels
from workers.profiles.gpu.memory_classes import explain_mismatch, parse_demand
from workers.profiles.gpu.model_files.machine_models import find_files
from workers.profiles.gpu.model_files.requested_pulls import RequestedPulls
from workers.profiles.gpu.model_loader import ModelLoader
from workers.profiles.gpu.pricing import start_pricing


class Runner:
    """Loads the models of one seat and runs stages on them."""

    def __init__(
        self, capability: GpuCapability, seat: GpuSeat, on_warm_change: Callable[[], None] = lambda: None
    ) -> None:
        self._capability = capability
        self._seat = seat
        self._pulls: RequestedPulls | None = None
        self._pulled: dict[str, Model] = {}  # the models that came since the probe, with their files
        if seat.pull_bytes is not None:
            self._pulls = RequestedPulls(settings().home, seat.pull_bytes, seat.cache_bytes)
        self.loader = ModelLoader(seat)
        self.loaded_models = LoadedModels(self.loader, seat.idle_unload, on_warm_change)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run `stage` and return its output.

        `workers.model_apis.stages` and `workers.model_apis.api_request` describe inputs and outputs. Raises
        SeatUnavailable if the seat does not meet the stage's effects, and the errors of `ModelProcess`.
        """
        request = stage_runner.parse_stage_input(stage, value)
        self._check_demands(stage)
        models, in_cooldown = self._seat.models, context.models_in_cooldown
        model = stages.choose_model(stage, request, models, in_cooldown=in_cooldown) if models else None
        if model is None or self._seat.engine is None:
            raise SeatUnavailable("The seat has no model to run", {"path": stage.path})
        context.check()
        model = self._find_files(model, stage, context)
        context.use_model(model.name)
        priced = PricedContext(context, start_pricing(self._seat.price_per_hour))
        with self.loaded_models.use(model, context) as process:
            return stage_runner.run_request(request, model.name, priced, EngineBackend(process))

    def _find_files(self, model: Model, stage: StageCall, context: StageContext) -> Model:
        """Return `model` with its file, which is pulled if it is not here. Raises what `find_model` does."""
        if not model.is_reference:
            return model
        known = self._pulled.get(model.name)
        if known is not None and known.locate_file().exists():  # the list is not read for each request
            return known
        if self._pulls is None:
            found = find_files(model, settings().home)
        else:
            try:
                is_refused = stage.implementation == stages.API_REQUEST
                found = self._pulls.find_model(model, context, is_refused=is_refused)
            except ModelFileError:
                context.use_model(model.name)  # the failed pull is this model's alone
                raise
        if not found.is_reference:
            self._pulled[model.name] = found
        return found

    def load(self, name: str, context: StageContext) -> None:
        """Load a model if it is not loaded. Raises SeatUnavailable if the seat does not have it."""
        self.loaded_models.load(self._find_model(name), context)

    def unload(self, name: str) -> None:
        """Unload a model of the seat. Raises SeatUnavailable if the seat does not have it, or uses it."""
        if not self.loaded_models.unload(self._find_model(name).name):
            raise SeatUnavailable(
                f"The model {name!r} is in use", {"model": name, "fix": "try again when its stages are done"}
            )

    def _find_model(self, name: str) -> Model:
        for model in self._seat.models:
            if name in (model.name, *model.families):
                return find_files(model, settings().home)
        has = ", ".join(model.name for model in self._seat.models) or "none"
        raise SeatUnavailable(f"The seat has no model {name!r}", {"model": name, "expected": f"one of {has}"})

    def warm_queues(self) -> list[str]:
        """Return the queues whose first model is loaded and stays, or is about to be."""
        return list_warm_queues(self._seat.models, self.loaded_models.list_warm())

    def pass_over_seconds(self) -> dict[str, float]:
        """Return for how long stages may be passed over whose model has no room beside the loaded ones."""
        queues = list_warm_queues(self._seat.models, self.loaded_models.list_crowded())
        return dict.fromkeys(queues, self.loaded_models.get_patience()) if queues else {}

    def describe_loading(self) -> dict[str, Json]:
        """Return by queue the model that is loading, and the share that is done; None: not known."""
        return {
            queue: {"model": name, "share": share}
            for name, share in self.loaded_models.list_loading().items()
            for queue in list_warm_queues(self._seat.models, {name})
        }

    def describe_downloads(self) -> dict[str, Json]:
        """Return by queue the model that is being downloaded for its requests, and the share that is done."""
        downloads = {} if self._pulls is None else self._pulls.list_shares()
        return {
            queue: {"model": model.name, "share": downloads[model.name]}
            for model in self._seat.models
            if model.name in downloads
            for queue in list_llm_queues([model])
        }

    def _check_demands(self, stage: StageCall) -> None:
        for effect in stage.effects:
            demand = parse_demand(effect)
            mismatch = (
                explain_mismatch(demand.find_alternative(stage.queue), self._capability) if demand else ""
            )
            if mismatch:
                raise SeatUnavailable(
                    f"The seat does not meet the stage's demand: {mismatch}", {"path": stage.path}
                )

    def close(self) -> None:
        if self._pulls is not None:
            self._pulls.close()
        self.loaded_models.close()
