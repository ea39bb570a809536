"""Keep the loaded models of a seat within its memory, and decide which one to unload."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.model_process import ModelProcess

POLL_SECONDS = 0.2
"""Interval at which a stage that waits for memory checks for its cancellation."""


@dataclass(eq=False)
class LoadedModel:
    """A loaded model: its process, the number of stages that use it, and when it was last used."""

    model: Model
    process: ModelProcess
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)


class LoadedModels:
    """The loaded models within `budget_mb` of memory.

    Stages wait in one line. The first one uses its model at once if that is loaded, else it unloads the idle
    model that was unused longest. The stages behind it wait, even if their own model is still loaded, so that
    no model starves when stages of several models alternate.
    """

    def __init__(self, budget_mb: int, load: Callable[[Model, StageContext], ModelProcess]) -> None:
        self._budget_mb = budget_mb
        self._load = load
        self._changed = threading.Condition()
        self._loaded: dict[str, LoadedModel] = {}
        self._loading: dict[str, int] = {}
        self._line: deque[object] = deque()
        self._is_closed = False
        self.loads = 0

    @contextmanager
    def use(self, model: Model, context: StageContext) -> Iterator[ModelProcess]:
        """Load `model` if needed and keep it during the block. Yields its process."""
        loaded = self._acquire(model, context)
        try:
            yield loaded.process
        finally:
            with self._changed:
                loaded.users -= 1
                loaded.used_at = time.monotonic()
                self._changed.notify_all()

    def list_names(self) -> list[str]:
        """Return the loaded models. Takes no lock: a heartbeat must not wait for a process to end."""
        return [name for name, loaded in list(self._loaded.items()) if loaded.process.is_alive]

    def list_processes(self) -> list[ModelProcess]:
        return [loaded.process for loaded in list(self._loaded.values())]

    def close(self) -> None:
        """End every process, and the waits for one."""
        with self._changed:
            self._is_closed = True
            models, self._loaded = list(self._loaded.values()), {}
            self._changed.notify_all()
        for loaded in models:
            loaded.process.close()

    def _acquire(self, model: Model, context: StageContext) -> LoadedModel:
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            try:
                while True:
                    if self._is_closed:
                        raise SeatUnavailable("The seat is closing", {"retry_after": 0})
                    if self._line[0] is ticket:
                        self._forget_dead()
                        loaded = self._loaded.get(model.name)
                        if loaded is not None:
                            loaded.users += 1
                            return loaded
                        if model.name not in self._loading and self._make_room(model):
                            self._loading[model.name] = model.memory_mb
                            break
                    self._changed.wait(POLL_SECONDS)
                    context.check()
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()
        return self._load_model(model, context)

    def _load_model(self, model: Model, context: StageContext) -> LoadedModel:
        try:
            process = self._load(model, context)
        finally:
            with self._changed:
                del self._loading[model.name]
                self._changed.notify_all()
        with self._changed:
            if not self._is_closed:
                self.loads += 1
                loaded = self._loaded[model.name] = LoadedModel(model, process)
                loaded.users = 1
                return loaded
        process.close()
        raise SeatUnavailable("The seat is closing", {"retry_after": 0})

    def _forget_dead(self) -> None:
        """Forget the models whose process has ended."""
        for name in [name for name, loaded in self._loaded.items() if not loaded.process.is_alive]:
            del self._loaded[name]

    def _make_room(self, model: Model) -> bool:
        """Unload idle models until `model` fits. Return whether it does.

        Raises SeatUnavailable if it never will.
        """
        if model.memory_mb > self._budget_mb:
            raise SeatUnavailable(
                f"The model {model.name!r} needs {model.memory_mb} MB, but the seat has {self._budget_mb} MB",
                {"model": model.name},
            )
        used_mb = sum(loaded.model.memory_mb for loaded in self._loaded.values()) + sum(
            self._loading.values()
        )
        idle = sorted(
            (loaded for loaded in self._loaded.values() if loaded.users == 0),
            key=lambda each: each.used_at,
        )
        if used_mb - sum(loaded.model.memory_mb for loaded in idle) + model.memory_mb > self._budget_mb:
            return False  # unloading all idle models would not be enough, so keep them
        while used_mb + model.memory_mb > self._budget_mb:
            unused = idle.pop(0)
            del self._loaded[unused.model.name]
            unused.process.close()
            used_mb -= unused.model.memory_mb
        return True
