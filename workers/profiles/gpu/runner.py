"""Runs a stage on a model of the seat's own device."""

from __future__ import annotations

import time

from gridq.config.settings import settings
from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall, Usage
from workers.model_apis import stage_runner, stages
from workers.model_apis.demand import list_llm_queues
from workers.model_apis.model_catalogue import Model, verify_file
from workers.model_apis.priced_context import PricedContext
from workers.profiles.gpu import devices
from workers.profiles.gpu.backend import EngineBackend
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.costs import price_usage
from workers.profiles.gpu.loaded_models import LoadedModels
from workers.profiles.gpu.matching import describe_shortfall, parse_demand
from workers.profiles.gpu.model_process import LoadOrder, ModelProcess

CHECKSUM_CACHE = "checksums.json"
ALL_LAYERS = -1


class Runner:
    """One seat's models and what runs on them."""

    def __init__(self, capability: GpuCapability, seat: GpuSeat) -> None:
        self._capability = capability
        self._seat = seat
        self.residents = LoadedModels(seat.memory_mb, self._load)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run `stage`; see `workers.model_apis.stages` and `workers.model_apis.api_request`.

        SeatUnavailable: the seat is less than the stage's effects ask for. For the rest see `ModelProcess`.
        """
        asked = stage_runner.parse_stage_input(stage, value)
        self._check(stage)
        model = stages.choose_model(stage, asked, self._seat.models) if self._seat.models else None
        if model is None or self._seat.engine is None:
            raise SeatUnavailable("The seat has no model to run", {"path": stage.path})
        context.check()
        began = time.monotonic()
        with self.residents.using(model, context) as process:
            timed = PricedContext(context, lambda usage: self._timed(usage, began))
            return stage_runner.run_request(asked, model.name, timed, EngineBackend(process))

    def warm_queues(self) -> list[str]:
        """The queues whose work would run on a loaded model: the first that serves a queue counts."""
        first: dict[str, str] = {}
        for model in self._seat.models:
            for queue in list_llm_queues([model]):
                first.setdefault(queue, model.name)
        loaded = set(self.residents.names())
        return [queue for queue, name in first.items() if name in loaded]

    def _timed(self, usage: Usage, began: float) -> Usage:
        timed = usage.model_copy(update={"seconds": time.monotonic() - began})
        return price_usage(timed, self._seat.price_per_hour)

    def _check(self, stage: StageCall) -> None:
        for effect in stage.effects:
            demand = parse_demand(effect)
            lacking = describe_shortfall(demand.find_alternative(stage.queue), self._capability) if demand else ""
            if lacking:
                raise SeatUnavailable(f"The seat does not meet the stage: {lacking}", {"path": stage.path})

    def _load(self, model: Model, context: StageContext) -> ModelProcess:
        assert self._seat.engine is not None
        path = verify_file(model, settings().home / CHECKSUM_CACHE)
        free = devices.measure_free_mb(self._seat.backend, self._seat.uuid)
        if free is not None and free < model.memory_mb:
            raise SeatUnavailable(
                f"{model.name} needs {model.memory_mb} MB, {self._seat.device} has {free} MB free",
                {"model": model.name},
            )
        process = ModelProcess(
            LoadOrder(
                model=model.name,
                engine=self._seat.engine,
                path=path.resolve(),
                context=model.context,
                concurrency=self._seat.concurrency,
                threads=self._seat.threads,
                gpu_layers=0 if self._seat.backend == "cpu" else ALL_LAYERS,
                embeddings=model.embeddings,
                devices=(self._seat.uuid or "") if self._seat.backend == "cuda" else "",
            )
        )
        process.start(context)
        return process

    def close(self) -> None:
        self.residents.close()
