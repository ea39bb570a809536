"""Models in memory: who waits, who passes, and which model is unloaded."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from gridq.errors import JobCancelled, ModelFileError, SeatMemoryShort, SeatUnavailable, StageTimeout
from gridq.profiles.profile import StageContext
from tests.waiting import wait_for
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu import loaded_models
from workers.profiles.gpu.loaded_models import LoadedModels
from workers.profiles.gpu.memory.device_book import Refusal


def model(name: str, memory_mb: int = 100) -> Model:
    return Model(name=name, file="x", memory_mb=memory_mb)


class Process:
    """A process as `LoadedModels` sees it."""

    def __init__(self, name: str) -> None:
        self.name, self.is_alive = name, True


class Hold:
    def __init__(self, seat: Seat, name: str, mb: int) -> None:
        self.seat, self.name, self.mb = seat, name, mb

    def release(self) -> None:
        self.seat.holds.pop(self.name, None)


class Seat:
    """A seat with `budget_mb` of memory, whose loads are a list of names. It is the loader, too."""

    def __init__(self, budget_mb: int, idle_seconds: float = 0, **seconds: float) -> None:
        self.log: list[str] = []
        self.holds: dict[str, Hold] = {}
        self.budget_mb, self.seconds = budget_mb, seconds
        self.errors: list[Exception] = []
        self.may_load = threading.Event()
        self.may_load.set()
        self.changes: list[list[str]] = []
        """What was warm at each change."""
        self.models = LoadedModels(self, idle_seconds, lambda: self.changes.append(self.models.list_warm()))

    def reserve(self, model: Model) -> Any:
        used = sum(hold.mb for hold in self.holds.values())
        assert model.memory_mb is not None
        if model.memory_mb > self.budget_mb - used:
            return Refusal(model.memory_mb, self.budget_mb - used, self.budget_mb)
        hold = self.holds[model.name] = Hold(self, model.name, model.memory_mb)
        return hold

    def load(self, model: Model, hold: Hold, context: StageContext) -> Any:
        while not self.may_load.wait(0.01):
            context.check()
        if self.errors:
            raise self.errors.pop(0)
        self.log.append(f"+{model.name}")
        return Process(model.name)

    def unload(self, process: Any, hold: Hold) -> None:
        process.is_alive = False
        hold.release()
        self.log.append(f"-{process.name}")

    def get_load_seconds(self, name: str) -> float | None:
        return self.seconds.get(name)

    def make_short_error(self, model: Model, refusal: Refusal) -> SeatMemoryShort:
        return SeatMemoryShort("too little", {"need_mb": refusal.need_mb, "free_mb": refusal.free_mb})

    def use(self, name: str, memory_mb: int = 100) -> None:
        with self.models.use(model(name, memory_mb), StageContext()):
            pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_models, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(loaded_models, "MIN_GAP_SECONDS", 0.0)
    monkeypatch.setattr(loaded_models, "GAP_SHARE", 0.0)
    monkeypatch.setattr(loaded_models, "MIN_PATIENCE_SECONDS", 0.05)


def test_a_model_is_loaded_once_and_the_longest_unused_goes_first():
    seat = Seat(250)
    for name in ("a", "b", "a", "c", "a"):
        seat.use(name)
    assert seat.log == ["+a", "+b", "-b", "+c"]
    assert seat.models.list_names() == ["a", "c"]


def test_a_model_that_was_just_used_stays_for_a_share_of_the_time_of_a_load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loaded_models, "GAP_SHARE", 0.1)
    monkeypatch.setattr(loaded_models, "MIN_PATIENCE_SECONDS", 30.0)
    seat = Seat(150, a=3)
    seat.use("a")
    asked_at = time.monotonic()
    seat.use("b")
    assert time.monotonic() - asked_at > 0.25
    assert seat.log == ["+a", "-a", "+b"]


def test_the_model_that_is_missed_least_goes_first():
    """Seconds of a reload times recent uses: a large model stays though it was used less lately."""
    seat = Seat(250, a=60, b=1)
    for name in ("a", "b", "b", "b", "c"):
        seat.use(name)
    assert seat.log == ["+a", "+b", "-b", "+c"]


def test_no_more_is_unloaded_than_is_needed():
    seat = Seat(250, small=1, large=2)
    seat.use("small", 50)
    seat.use("large", 200)
    seat.use("next", 150)
    assert seat.log == ["+small", "+large", "-large", "+next"]


def test_a_model_that_fits_beside_nothing_says_so():
    with pytest.raises(SeatMemoryShort) as caught:
        Seat(250).use("a", 300)
    assert caught.value.details == {"need_mb": 300, "free_mb": 250}


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
    seat.may_load.clear()
    threads = [threading.Thread(target=seat.use, args=("a",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    seat.may_load.set()
    for thread in threads:
        thread.join(5)
    assert seat.log == ["+a"]


def test_a_client_that_leaves_does_not_end_the_load():
    seat = Seat(250)
    seat.may_load.clear()
    leaving = StageContext()
    threading.Timer(0.05, leaving.cancel).start()
    with pytest.raises(JobCancelled), seat.models.use(model("a"), leaving):
        pass
    assert list(seat.models.list_loading()) == ["a"]
    seat.may_load.set()
    wait_for(lambda: seat.models.list_names() == ["a"], 5)


def test_a_stage_without_time_left_ends_and_the_load_goes_on():
    seat = Seat(250)
    seat.may_load.clear()
    short = StageContext(deadline=time.monotonic() + 0.05)
    with pytest.raises(StageTimeout), seat.models.use(model("a"), short):
        pass
    seat.may_load.set()
    wait_for(lambda: seat.models.list_names() == ["a"], 5)


def test_the_progress_of_a_load_is_that_of_its_last_time():
    seat = Seat(250, a=1000)
    seat.may_load.clear()
    threads = [threading.Thread(target=seat.use, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    wait_for(lambda: seat.models.list_loading().get("a") is not None, 5)
    assert 0 <= (seat.models.list_loading()["a"] or 0) < 0.5
    seat.may_load.set()
    for thread in threads:
        thread.join(5)
    assert seat.models.list_loading() == {}


def test_progress_is_not_invented():
    seat = Seat(250)
    seat.may_load.clear()
    thread = threading.Thread(target=seat.use, args=("a",))
    thread.start()
    wait_for(lambda: bool(seat.models.list_loading()), 5)
    assert seat.models.list_loading() == {"a": None}
    seat.may_load.set()
    thread.join(5)


def test_a_waiting_model_is_not_overtaken_forever():
    """Requests for the loaded model keep coming; the other model still gets its turn."""
    seat = Seat(100, b=0.01)
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


def test_two_models_that_alternate_are_not_swapped_for_each_request():
    """Ten clients, each asks for both models in turn: as many loads as runs, not as requests."""
    seat = Seat(100, a=0.05, b=0.05)

    def client(number: int) -> None:
        for at in range(6):
            with seat.models.use(model("ab"[(number + at) % 2]), StageContext()):
                time.sleep(0.005)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert 2 <= seat.models.loads <= 15, "60 requests"
    assert seat.models.unloads["room"] == seat.models.loads - 1


def test_work_for_the_next_model_is_preferred_from_the_moment_that_it_gets_its_turn():
    """Claims fill the seat's slots with it while the last stages of the other model end."""
    seat = Seat(150, a=0.01, b=0.01)
    seat.use("a")
    with ThreadPoolExecutor(1) as pool:
        with seat.models.use(model("a"), StageContext()):
            waiting = pool.submit(seat.use, "b")
            wait_for(lambda: seat.models.list_warm() == ["b"], 5)
            assert seat.models.list_names() == ["a"], "it is still in use"
        waiting.result(5)
    assert seat.models.list_crowded() == ["a"]
    assert ["b"] in seat.changes


def test_only_models_without_room_beside_the_others_are_crowded():
    seat = Seat(250)
    for name in ("a", "b"):
        seat.use(name)
    assert seat.models.list_crowded() == []
    seat.use("c")
    assert seat.models.list_crowded() == ["a"]
    seat.models.unload("b")
    seat.use("a")
    assert seat.models.list_crowded() == []


def test_patience_is_that_of_ten_loads_of_the_slowest_model_in_use(monkeypatch: pytest.MonkeyPatch):
    seat = Seat(250, a=1.5, b=0.5, huge=20.0)
    assert seat.models.get_patience() == 30.0, "nothing is known yet"
    seat.use("b")
    assert seat.models.get_patience() == 5.0
    seat.use("a")
    assert seat.models.get_patience() == 15.0
    monkeypatch.setattr(loaded_models, "MIN_DEMAND", 1.5)
    assert seat.models.get_patience() == 30.0, "neither is in use any more"
    monkeypatch.setattr(loaded_models, "MIN_DEMAND", 0.5)
    seat.use("huge", 200)
    assert seat.models.get_patience() == loaded_models.MAX_PATIENCE_SECONDS


def test_a_request_that_was_passed_over_in_the_grid_has_waited(monkeypatch: pytest.MonkeyPatch):
    seat = Seat(100)
    monkeypatch.setattr(loaded_models, "MIN_PATIENCE_SECONDS", 60.0)
    seat.use("a")
    with ThreadPoolExecutor(2) as pool:
        with seat.models.use(model("a"), StageContext()):
            late = pool.submit(lambda: seat.models.load(model("b"), StageContext(waited=100.0)))
            time.sleep(0.1)
            assert seat.models.list_warm() == ["a"], "its run has just begun"
            seat.models._settled_at -= 100.0
            wait_for(lambda: seat.models.list_warm() == ["b"], 5)
        late.result(5)


def test_loading_beside_a_model_does_not_hold_up_its_requests():
    seat = Seat(250)
    seat.use("a")
    seat.may_load.clear()
    thread = threading.Thread(target=seat.use, args=("b",))
    thread.start()
    wait_for(lambda: bool(seat.models.list_loading()), 5)
    time.sleep(0.1)  # longer than its patience
    seat.use("a")
    assert seat.models.list_names() == ["a"]
    seat.may_load.set()
    thread.join(5)


def test_a_dead_process_is_forgotten_and_its_memory_too():
    seat = Seat(100)
    with seat.models.use(model("a"), StageContext()) as process:
        process.is_alive = False  # type: ignore[misc]
    seat.use("b")
    assert seat.log == ["+a", "+b"]
    assert list(seat.holds) == ["b"]


def test_a_failed_load_reserves_no_memory():
    seat = Seat(100)
    seat.errors = [ModelFileError("no"), RuntimeError("a fault of the loader")]
    with pytest.raises(ModelFileError):
        seat.use("a")
    with pytest.raises(SeatUnavailable):
        seat.use("a")
    assert seat.holds == {}
    seat.use("a")


def test_each_waiting_stage_gets_an_error_of_its_own():
    seat = Seat(100)
    seat.may_load.clear()
    seat.errors = [ModelFileError("no", {"fix": "x"})]
    caught: list[ModelFileError] = []

    def fail() -> None:
        try:
            seat.use("a")
        except ModelFileError as error:
            error.details["path"] = len(caught)
            caught.append(error)

    threads = [threading.Thread(target=fail) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(seat.models._line) == 2, 5)
    seat.may_load.set()
    for thread in threads:
        thread.join(5)
    assert len({id(error.details) for error in caught}) == 2


def test_a_load_that_runs_out_of_memory_is_tried_once_more_after_idle_models_went():
    seat = Seat(250)
    seat.use("idle")
    seat.errors = [SeatMemoryShort("out")]
    seat.use("a")
    assert seat.log == ["+idle", "-idle", "+a"]
    seat.errors = [SeatMemoryShort("out"), SeatMemoryShort("out again")]
    with pytest.raises(SeatMemoryShort, match="again"):
        seat.use("b")
    assert seat.models.list_names() == []
    assert seat.holds == {}


def test_without_idle_models_a_load_out_of_memory_is_not_tried_again():
    seat = Seat(250)
    seat.errors = [SeatMemoryShort("out")]
    with pytest.raises(SeatMemoryShort):
        seat.use("a")
    assert seat.errors == []


def test_an_idle_model_is_unloaded_after_its_time_and_a_used_one_stays():
    seat = Seat(250, idle_seconds=0.1)
    with ExitStack() as stack:
        stack.enter_context(seat.models.use(model("used"), StageContext()))
        seat.use("idle")
        wait_for(lambda: seat.log == ["+used", "+idle", "-idle"], 5)
        time.sleep(0.2)
        assert seat.models.list_names() == ["used"]
    wait_for(lambda: seat.models.list_names() == [], 5)
    assert seat.models.unloads == {"idle": 2}
    seat.models.close()


def test_an_operator_unloads_an_idle_model_only():
    seat = Seat(250)
    with seat.models.use(model("a"), StageContext()):
        assert not seat.models.unload("a")
    assert seat.models.unload("a")
    assert seat.models.unload("never loaded")
    assert seat.log == ["+a", "-a"]


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
        wait_for(lambda: bool(seat.models._line), 5)
        seat.models.close()
        thread.join(5)
    assert len(errors) == 1
    assert seat.log == ["+a", "-a"]


def test_closing_ends_a_load():
    seat = Seat(100)
    seat.may_load.clear()

    with ThreadPoolExecutor() as threads:
        use = threads.submit(seat.use, "a")
        wait_for(lambda: bool(seat.holds), 5)
        seat.models.close()
        with pytest.raises(SeatUnavailable):
            use.result(5)
    assert seat.holds == {}
    assert seat.log == []
