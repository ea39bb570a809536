"""The gpu profile: this machine's GPUs and its CPU."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from gridq.errors import GridError, SeatUnavailable
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol.models import Demand, Effect, Estimate, Json, ProbeReport, StageCall
from workers.model_apis import stages
from workers.model_apis.demand import list_families_by_queue
from workers.model_apis.stage_runner import parse_stage_input
from workers.model_apis.usage import to_micro_dollars
from workers.profiles.gpu import devices, memory_classes
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.probe import probe
from workers.profiles.gpu.runner import Runner

SAMPLE_SECONDS = 5.0


class GpuProfile(Profile):
    """A seat is one device. Its queues are its memory classes and the models that it can load.

    `metrics` returns `free_mb` (sampled on a thread, since a heartbeat must not wait for a driver),
    `models_mb` (the memory of the models' processes), `loads`, and `loaded:<name>` = 1 for each loaded model.
    """

    kind: ClassVar[str] = memory_classes.KIND
    Capability: ClassVar[type[BaseModel]] = GpuCapability

    def __init__(self) -> None:
        self._runner: Runner | None = None
        self._sampler: Sampler | None = None

    def queues(self, capability: BaseModel) -> list[str]:
        assert isinstance(capability, GpuCapability)
        return memory_classes.list_queues(capability)

    def families(self, capability: BaseModel) -> dict[str, list[str]]:
        """Return for each queue the name and the families of the model that the seat prefers for it."""
        assert isinstance(capability, GpuCapability)
        return list_families_by_queue(capability.models)

    def hourly_price(self, capability: BaseModel, config: Mapping[str, Json]) -> int | None:
        return to_micro_dollars(GpuSeat.model_validate(config).price_per_hour) or None

    def demand(self, effect: Effect) -> Demand | None:
        return memory_classes.parse_demand(effect)

    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        assert isinstance(capability, GpuCapability)
        return memory_classes.matches(demand, capability)

    def explain_mismatch(self, demand: Demand, capability: BaseModel) -> str:
        assert isinstance(capability, GpuCapability)
        return memory_classes.explain_mismatch(demand, capability)

    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        return probe(config)

    def open(self, capability: BaseModel, config: Mapping[str, Json]) -> None:
        """Create the runner. It loads a model when the first stage needs it."""
        assert isinstance(capability, GpuCapability)
        seat = GpuSeat.model_validate(config)
        self._runner = Runner(capability, seat)
        self._sampler = Sampler(seat, capability.free_mb)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run a model stage on the seat's GPU or CPU, in the model's own process. Return its output."""
        if self._runner is None:
            parse_stage_input(stage, value)
            raise SeatUnavailable("The gpu seat is not open", {"path": stage.path})
        try:
            return self._runner.run(stage, value, context)
        except GridError as error:
            error.details.setdefault("path", stage.path)
            raise

    def exclude_models(self, capability: BaseModel, models: Collection[str]) -> BaseModel:
        assert isinstance(capability, GpuCapability)
        left = tuple(model for model in capability.models if model.name not in models)
        return capability.model_copy(update={"models": left})

    def close(self) -> None:
        """End the models' processes. Their memory is free when this returns."""
        sampler, self._sampler = self._sampler, None
        runner, self._runner = self._runner, None
        if sampler is not None:
            sampler.stop()
        if runner is not None:
            runner.close()

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        return stages.estimate_usage(stage, value)

    def warm_queues(self) -> list[str]:
        return [] if self._runner is None else self._runner.warm_queues()

    def metrics(self) -> dict[str, float]:
        if self._runner is None or self._sampler is None:
            return {}
        models = self._runner.loaded_models
        return {
            "free_mb": float(self._sampler.free_mb),
            "models_mb": float(sum(process.measure_memory_mb() for process in models.list_processes())),
            "loads": float(models.loads),
            **{f"loaded:{name}": 1.0 for name in models.list_names()},
        }


class Sampler:
    """Measures the free memory of the device every few seconds; `free_mb` is the last value."""

    def __init__(self, seat: GpuSeat, free_mb: int) -> None:
        self.free_mb = free_mb
        self._seat = seat
        self._stopped = threading.Event()
        threading.Thread(target=self._sample_repeatedly, name="gridq-sampler", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _sample_repeatedly(self) -> None:
        while not self._stopped.wait(SAMPLE_SECONDS):
            free = devices.measure_free_mb(self._seat.backend, self._seat.uuid)
            if free is not None:
                self.free_mb = free
