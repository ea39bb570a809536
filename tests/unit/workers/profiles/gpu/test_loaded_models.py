"""Models in memory and the order in which they are unloaded."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gridq.errors import JobCancelled, ModelFileError, SeatUnavailable
from gridq.profiles.profile import StageContext
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.loaded_models import LoadedModels


def model(name: str, memory_mb: int = 100) -> Model:
    return Model(name=name, file="x", memory_mb=memory_mb)


class Stub:
    """A process as `LoadedModels` sees it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.is_alive, self._log, self._name = True, log, name

    def close(self) -> None:
        self.is_alive = False
        self._log.append(f"-{self._name}")


class Seat:
    def __init__(self, budget_mb: int) -> None:
        self.log: list[str] = []
        self.held = threading.Event()
        self.held.set()
        self.models = LoadedModels(budget_mb, self._load)

    def _load(self, wanted: Model, context: StageContext) -> Any:
        self.held.wait(5)
        self.log.append(f"+{wanted.name}")
        return Stub(self.log, wanted.name)

    def use(self, name: str, memory_mb: int = 100) -> None:
        with self.models.use(model(name, memory_mb), StageContext()):
            pass


def test_a_model_is_loaded_once_and_the_longest_unused_goes_first():
    seat = Seat(250)
    for name in ("a", "b", "a", "c", "a"):
        seat.use(name)
    assert seat.log == ["+a", "+b", "-b", "+c"]
    assert seat.models.list_names() == ["a", "c"]


def test_a_model_that_never_fits_says_the_numbers():
    with pytest.raises(SeatUnavailable, match="needs 300 MB, but the seat has 250 MB"):
        Seat(250).use("a", 300)


def test_no_model_is_unloaded_without_need():
    seat = Seat(250)
    seat.use("idle")
    with seat.models.use(model("busy"), StageContext()):
        waiting = StageContext()
        threading.Timer(0.05, waiting.cancel).start()
        with pytest.raises(JobCancelled), seat.models.use(model("large", 200), waiting):
            pass
        assert seat.log == ["+idle", "+busy"]


def test_concurrent_users_load_a_model_once():
    seat = Seat(250)
    seat.held.clear()
    threads = [threading.Thread(target=seat.use, args=("a",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    seat.held.set()
    for thread in threads:
        thread.join(5)
    assert seat.log == ["+a"]


def test_a_waiting_model_is_not_overtaken_forever():
    """Requests for the loaded model keep coming; the other model still gets its turn."""
    seat = Seat(100)
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            with seat.models.use(model("a"), StageContext()):
                time.sleep(0.005)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with seat.models.use(model("b"), StageContext(deadline=None)):
            assert seat.models.list_names() == ["b"]
    finally:
        over.set()
        for thread in threads:
            thread.join(5)


def test_a_dead_process_is_forgotten():
    seat = Seat(250)
    with seat.models.use(model("a"), StageContext()) as process:
        process.is_alive = False  # type: ignore[misc]
    seat.use("a")
    assert seat.log == ["+a", "+a"]


def test_a_failed_load_reserves_no_memory():
    def fail(wanted: Model, context: StageContext) -> Any:
        raise ModelFileError("no")

    models = LoadedModels(100, fail)
    for _ in range(3):
        with pytest.raises(ModelFileError), models.use(model("a"), StageContext()):
            pass


def test_closing_fails_waiting_callers():
    seat = Seat(100)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            seat.use("b")
        except SeatUnavailable as error:
            errors.append(error)

    with seat.models.use(model("a"), StageContext()):
        thread = threading.Thread(target=wait)
        thread.start()
        while not seat.models._line:
            time.sleep(0.001)
        seat.models.close()
        thread.join(5)
    assert len(errors) == 1
    assert seat.log == ["+a", "-a"]
