"""The gpu profile: this machine's GPUs and its CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel

from gridq.errors import GridError, SeatUnavailable, StageError
from gridq.profiles.metric_keys import format_metric
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, Effect, Estimate, Json, ProbeReport, StageCall
from gridq.stages.python import PREFIX
from workers.model_apis import stages
from workers.model_apis.demand import list_families_by_queue
from workers.model_apis.stage_runner import parse_stage_input
from workers.model_apis.usage import to_micro_dollars
from workers.profiles.gpu import memory_classes, seat_report
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.devices.sampler import Sampler
from workers.profiles.gpu.probe import probe
from workers.profiles.gpu.python_stages.running import PythonStages
from workers.profiles.gpu.runner import Runner
from workers.profiles.gpu.running_engines import engine_offers, handoff_files
from workers.profiles.gpu.running_engines.engine_offers import EngineSeat, is_engine_seat
from workers.profiles.gpu.running_engines.engine_seat_runner import EngineSeatRunner
from workers.profiles.gpu.running_engines.finding import NewEngines

ANY_QUEUE = queue_names.make_queue_name(queue_names.LLM, queue_names.ANY_MODEL)


class GpuProfile(Profile):
    """A seat is one device, or one engine that already runs. The queues of a device are its memory classes
    and the models that it can load, those of an engine the models that it has at the moment.

    The device is sampled on a thread of its own, since a heartbeat must not wait for a driver.
    """

    kind: ClassVar[str] = memory_classes.KIND
    Capability: ClassVar[type[BaseModel]] = GpuCapability
    runs_python: ClassVar[bool] = True
    metric_helps: ClassVar[Mapping[str, str]] = seat_report.METRIC_HELPS

    def __init__(self) -> None:
        self._runner: Runner | None = None
        self._python_stages: PythonStages | None = None
        self._engine_runner: EngineSeatRunner | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._on_warm_change: Callable[[], None] = lambda: None
        self._opened: tuple[GpuCapability, GpuSeat] | None = None
        self._sampler: Sampler | None = None

    def queues(self, capability: BaseModel) -> list[str]:
        assert isinstance(capability, GpuCapability)
        return memory_classes.list_queues(capability)

    def families(self, capability: BaseModel) -> dict[str, list[str]]:
        """Return for each queue the name and the families of the model that the seat prefers for it."""
        assert isinstance(capability, GpuCapability)
        return list_families_by_queue(capability.models)

    def hourly_price(self, capability: BaseModel, config: Mapping[str, Json]) -> int | None:
        seat = (EngineSeat if is_engine_seat(config) else GpuSeat).model_validate(config)
        return to_micro_dollars(seat.price_per_hour)  # 0: its time counts, and costs nothing

    def keeps_prompts(self, config: Mapping[str, Json]) -> bool:
        """Return True: every engine goes on from the prompts that its slots hold, at least."""
        return True

    def demand(self, effect: Effect) -> Demand | None:
        return memory_classes.parse_demand(effect)

    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        assert isinstance(capability, GpuCapability)
        return memory_classes.matches(demand, capability)

    def explain_mismatch(self, demand: Demand, capability: BaseModel) -> str:
        assert isinstance(capability, GpuCapability)
        return memory_classes.explain_mismatch(demand, capability)

    def last_resort_queues(self, capability: BaseModel) -> Sequence[str]:
        """Return `llm:any` if all models that take requests for it are of the last resort."""
        assert isinstance(capability, GpuCapability)
        takers = [model for model in capability.models if model.any]
        return (ANY_QUEUE,) if takers and all(model.is_last_resort for model in takers) else ()

    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        return probe(config)

    def open(self, capability: BaseModel, config: Mapping[str, Json]) -> None:
        """Create the runner. It loads a model when the first stage needs it."""
        assert isinstance(capability, GpuCapability)
        if is_engine_seat(config):
            engine = EngineSeat.model_validate(config)
            self._engine_runner = EngineSeatRunner(capability, engine, self._on_change)
            return
        seat = GpuSeat.model_validate(config)
        self._opened = (capability, seat)
        self._runner = runner = Runner(capability, seat, self._on_warm_change)
        self._python_stages = PythonStages(seat, runner.loader, runner.loaded_models)
        self._sampler = Sampler(seat.backend, seat.uuid, self._on_change)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run a model stage in its model's own process on the seat's GPU or CPU, or at the seat's engine; or
        a Python stage in a process of its own. Return its output.
        """
        if self._python_stages is not None and stage.implementation.startswith(PREFIX):
            return self._run_python(self._python_stages, stage, value, context)
        runner = self._engine_runner or self._runner
        if runner is None:
            parse_stage_input(stage, value)
            raise SeatUnavailable("The gpu seat is not open", {"path": stage.path})
        try:
            return runner.run(stage, value, context)
        except GridError as error:
            error.details.setdefault("path", stage.path)
            raise

    def _run_python(
        self, python_stages: PythonStages, stage: StageCall, value: Json, context: StageContext
    ) -> Json:
        try:
            return python_stages.run(stage, value, context)
        except GridError as error:
            error.details.setdefault("path", stage.path)
            if isinstance(error, StageError):
                error.details.setdefault("stage", stage.name)
            raise

    def exclude_models(self, capability: BaseModel, models: Collection[str]) -> BaseModel:
        assert isinstance(capability, GpuCapability)
        left = tuple(model for model in capability.models if model.name not in models)
        return capability.model_copy(update={"models": left})

    def current_capability(self, capability: BaseModel) -> BaseModel:
        """Return the capability with the models that the seat's engine has now. A device's stays as it is."""
        return capability if self._engine_runner is None else self._engine_runner.capability

    def announcement_folder(self, home: Path) -> Path | None:
        """Return the folder of handoff files, which announce engines that other programs start."""
        return home / handoff_files.FOLDER

    def look_for_seats(self) -> Callable[[], bool] | None:
        """Return a look at the usual ports of engines, unless their search is off."""
        return None if engine_offers.is_search_off(os.environ) else NewEngines().look

    def watch_offer(self, act: Callable[[], None]) -> None:
        self._on_change = act

    def watch_warm_queues(self, act: Callable[[], None]) -> None:
        self._on_warm_change = act

    def health(self) -> str:
        """Return why the seat's engine, or its device, cannot be used now, "" if it can."""
        if self._engine_runner is not None:
            return self._engine_runner.fault
        return "" if self._sampler is None else self._sampler.fault

    def close(self) -> None:
        """End the models' processes. Their memory is free when this returns. An engine goes on."""
        engine_runner, self._engine_runner = self._engine_runner, None
        if engine_runner is not None:
            engine_runner.close()
        sampler, self._sampler = self._sampler, None
        runner, self._runner = self._runner, None
        python_stages, self._python_stages = self._python_stages, None
        if python_stages is not None:
            python_stages.close()
        if sampler is not None:
            sampler.stop()
        if runner is not None:
            runner.close()

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        if stage.implementation.startswith(PREFIX):
            return Estimate(gpu_seconds=memory_classes.find_seconds(stage.effects))
        return stages.estimate_usage(stage, value)

    def load(self, model: str, context: StageContext) -> None:
        """Load a model on the device or at the engine.

        Raises SeatUnavailable if the seat has no such model.
        """
        runner = self._engine_runner or self._runner
        if runner is None:
            super().load(model, context)
            return
        runner.load(model, context)

    def unload(self, model: str) -> None:
        """Unload an idle model of the device or the engine. Raises SeatUnavailable if it is in use."""
        runner = self._engine_runner or self._runner
        if runner is None:
            super().unload(model)
            return
        runner.unload(model)

    def warm_queues(self) -> list[str]:
        runner = self._engine_runner or self._runner
        return [] if runner is None else runner.warm_queues()

    def pass_over_seconds(self) -> dict[str, float]:
        return {} if self._runner is None else self._runner.pass_over_seconds()

    def metrics(self) -> dict[str, float]:
        engine = self._engine_runner
        if engine is not None:
            loaded = {format_metric("model_loaded", model=name): 1.0 for name in engine.list_loaded()}
            return {"gpu_seconds_total": engine.use_seconds, **loaded}
        runner, sampler, stages = self._runner, self._sampler, self._python_stages
        if runner is None or sampler is None or stages is None:
            return {}
        return seat_report.make_metrics(sampler.reading, runner.loaded_models, stages)

    def details(self) -> dict[str, Json]:
        """Return what `gridq gpus` shows of the seat."""
        engine = self._engine_runner
        if engine is not None:
            rows: list[Json] = [{"name": name} for name in engine.list_loaded()]
            return {"models": rows, "loading": engine.describe_loading()}
        opened, runner, sampler, stages = self._opened, self._runner, self._sampler, self._python_stages
        if opened is None or runner is None or sampler is None or stages is None:
            return {}
        capability, seat = opened
        reading, models = sampler.reading, runner.loaded_models
        found = seat_report.make_details(seat, capability, reading, models, stages)
        found["loading"] = runner.describe_loading()
        downloads = runner.describe_downloads()
        return {**found, "downloading": downloads} if downloads else found
