"""Run Python stages on a seat's device: reserve memory, run each in its own process, give the memory back."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field

from gridq.config.settings import settings
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.stages import python
from workers.model_apis.context_wrappers import PricedContext
from workers.profiles.gpu.capability import GpuSeat
from workers.profiles.gpu.devices.device import list_visibility_variables
from workers.profiles.gpu.loaded_models import LoadedModels, make_closing_error
from workers.profiles.gpu.memory.device_book import Reservation
from workers.profiles.gpu.memory_classes import find_fields
from workers.profiles.gpu.model_loader import ModelLoader, make_short_error
from workers.profiles.gpu.pricing import start_pricing
from workers.profiles.gpu.python_stages.stage_child import StageChild


@dataclass(eq=False)
class RunningStage:
    """A stage that holds memory of the device: how much it reserved, whose it is, its process, its start (of
    the monotonic clock).
    """

    name: str
    memory_mb: int
    agent: str
    is_protected: bool
    child: StageChild
    began_at: float = field(default_factory=time.monotonic)


class PythonStages:
    """The Python stages of one seat."""

    def __init__(self, seat: GpuSeat, loader: ModelLoader, loaded_models: LoadedModels) -> None:
        self._seat = seat
        self._loader = loader
        self._loaded_models = loaded_models
        self._running: list[RunningStage] = []
        self._lock = threading.Lock()
        self._ended_seconds = 0.0
        self._is_closed = False

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run `stage` in a process that sees this device alone, and return its output.

        Without `memory_mb` in its effect, it gets all memory that the seat may use. Raises SeatUnavailable if
        this machine does not have the stage, SeatMemoryShort if its memory is not free now, and the errors of
        `StageChild.run`.
        """
        module = python.parse_module(stage.implementation)
        if module not in settings().stages:
            raise python.make_not_loaded_error(stage.implementation)
        seat, fields = self._seat, find_fields(stage.effects)
        memory_mb = math.ceil(fields.get("memory_mb") or seat.memory_mb)
        child = StageChild(
            list_visibility_variables(seat.backend, seat.uuid), memory_mb, self._loader.measure_memory_mb
        )
        hold = self._loaded_models.reserve_room(
            stage.name,
            lambda: self._loader.reserve_memory(memory_mb, stage.name),
            lambda refusal: make_short_error(
                "stage", stage.name, seat.device, refusal, "lower the stage's memory_mb"
            ),
            context,
        )
        assert isinstance(hold, Reservation)
        running = RunningStage(stage.name, memory_mb, context.agent, bool(fields.get("protected")), child)
        priced = PricedContext(context, start_pricing(seat.price_per_hour))
        try:
            with self._lock:
                if self._is_closed:
                    raise make_closing_error()
                self._running.append(running)
            return child.run(stage, value, priced, on_spawn=hold.assign)
        finally:
            self._loader.await_end_on_device(child.pids)
            self._loaded_models.release_room(hold)
            with self._lock:
                self._running = [each for each in self._running if each is not running]
                self._ended_seconds += time.monotonic() - running.began_at

    def list_running(self) -> list[RunningStage]:
        return list(self._running)

    def sum_seconds(self) -> float:
        """Return the seconds for which stages have held the device, those that run included."""
        now = time.monotonic()
        with self._lock:
            return self._ended_seconds + sum(now - each.began_at for each in self._running)

    def close(self) -> None:
        """End what runs, and take nothing more."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for each in running:
            each.child.close()
