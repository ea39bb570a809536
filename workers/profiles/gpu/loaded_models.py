"""Which models of a seat are loaded, and who may push out whom."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from workers.model_apis.models import Model
from workers.profiles.gpu.model_process import ModelProcess

LOOK_SECONDS = 0.2
"""How often one who waits for room looks whether it was cancelled."""


class Resident:
    """A loaded model: its process, how many stages use it, when it was last used."""

    def __init__(self, model: Model, process: ModelProcess) -> None:
        self.model = model
        self.process = process
        self.users = 0
        self.used_at = time.monotonic()


class Residents:
    """The loaded models within `budget_mb` of memory.

    A loaded model is used at once. Where another must go first, requests stand in one line: the first in it
    pushes out the idle model that was unused longest, and those behind it wait even where their own model is
    still loaded. So two models that are asked for in turns each get their turn, and neither starves.
    """

    def __init__(self, budget_mb: int, load: Callable[[Model, StageContext], ModelProcess]) -> None:
        self._budget = budget_mb
        self._load = load
        self._changed = threading.Condition()
        self._loaded: dict[str, Resident] = {}
        self._loading: dict[str, int] = {}
        self._line: deque[object] = deque()
        self._closed = False
        self.loads = 0

    @contextmanager
    def using(self, model: Model, context: StageContext) -> Iterator[ModelProcess]:
        """The process of `model`, loaded if need be, kept until the block ends."""
        resident = self._take(model, context)
        try:
            yield resident.process
        finally:
            with self._changed:
                resident.users -= 1
                resident.used_at = time.monotonic()
                self._changed.notify_all()

    def names(self) -> list[str]:
        """The models loaded now. Without the lock: a heartbeat must not wait for a process to end."""
        return [name for name, resident in list(self._loaded.items()) if resident.process.alive]

    def processes(self) -> list[ModelProcess]:
        return [resident.process for resident in list(self._loaded.values())]

    def close(self) -> None:
        """End every process; those who wait are told."""
        with self._changed:
            self._closed = True
            residents, self._loaded = list(self._loaded.values()), {}
            self._changed.notify_all()
        for resident in residents:
            resident.process.close()

    def _take(self, model: Model, context: StageContext) -> Resident:
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            try:
                while True:
                    if self._closed:
                        raise SeatUnavailable("The seat is closing", {"retry_after": 0})
                    if self._line[0] is ticket:
                        self._bury()
                        resident = self._loaded.get(model.name)
                        if resident is not None:
                            resident.users += 1
                            return resident
                        if model.name not in self._loading and self._make_room(model):
                            self._loading[model.name] = model.memory_mb
                            break
                    self._changed.wait(LOOK_SECONDS)
                    context.check()
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()
        return self._bring(model, context)

    def _bring(self, model: Model, context: StageContext) -> Resident:
        try:
            process = self._load(model, context)
        finally:
            with self._changed:
                del self._loading[model.name]
                self._changed.notify_all()
        with self._changed:
            if not self._closed:
                self.loads += 1
                resident = self._loaded[model.name] = Resident(model, process)
                resident.users = 1
                return resident
        process.close()
        raise SeatUnavailable("The seat is closing", {"retry_after": 0})

    def _bury(self) -> None:
        """Forget the models whose process is gone."""
        for name in [name for name, resident in self._loaded.items() if not resident.process.alive]:
            del self._loaded[name]

    def _make_room(self, model: Model) -> bool:
        """Whether `model` fits now, idle models pushed out as far as it takes. SeatUnavailable: it never
        will.
        """
        if model.memory_mb > self._budget:
            raise SeatUnavailable(
                f"The model {model.name!r} needs {model.memory_mb} MB, the seat has {self._budget} MB",
                {"model": model.name},
            )
        held = sum(resident.model.memory_mb for resident in self._loaded.values()) + sum(
            self._loading.values()
        )
        idle = sorted(
            (resident for resident in self._loaded.values() if resident.users == 0),
            key=lambda each: each.used_at,
        )
        if held - sum(resident.model.memory_mb for resident in idle) + model.memory_mb > self._budget:
            return False  # even all of the idle would not do: push none out for nothing
        while held + model.memory_mb > self._budget:
            leaving = idle.pop(0)
            del self._loaded[leaving.model.name]
            leaving.process.close()
            held -= leaving.model.memory_mb
        return True
