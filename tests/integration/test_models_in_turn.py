"""Two models of which one fits, asked for in turn by several clients: they share the seat in runs.

The scripts, the session and the seat's line are real; a load and a request only take their time.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gridq.errors import SeatMemoryShort
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import LocalGrid
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.loaded_models import LoadedModels
from workers.profiles.gpu.memory.device_book import Refusal

LOAD_SECONDS, REQUEST_SECONDS = 0.2, 0.1
KNOWN_SECONDS = 2.0
"""What the seat believes that a load takes: so a slow machine's pauses are short beside it."""

SLOTS, CLIENTS, REQUESTS = 4, 10, 40
SEAT = "m.gpu"


class Process:
    is_alive = True


class Hold:
    def __init__(self, loader: Loader, name: str) -> None:
        self.loader, self.name, self.mb = loader, name, 100

    def release(self) -> None:
        self.loader.holds.discard(self.name)


class Loader:
    """A device that holds one model. `known_seconds` is what is known of the time of its loads."""

    def __init__(self) -> None:
        self.holds: set[str] = set()
        self.known_seconds = LOAD_SECONDS

    def reserve(self, model: Model) -> Any:
        if self.holds:
            return Refusal(100, 0, 100)
        self.holds.add(model.name)
        return Hold(self, model.name)

    def load(self, model: Model, hold: Hold, context: StageContext) -> Any:
        time.sleep(LOAD_SECONDS)
        return Process()

    def unload(self, process: Any, hold: Hold) -> None:
        hold.release()

    def get_load_seconds(self, name: str) -> float | None:
        return self.known_seconds

    def make_short_error(self, model: Model, refusal: Refusal) -> SeatMemoryShort:
        return SeatMemoryShort("too little")


class Seat:
    """A grid with one seat of two models, whose queues are `bench:one` and `bench:two`."""

    def __init__(self, grid_env: GridEnv) -> None:
        config = grid_env.settings.model_copy(update={"profiles": (BENCH,)})
        self.grid = LocalGrid(
            grid_env.client, config, {SEAT: ["bench:one", "bench:two"]}, concurrency=SLOTS, runner=self.run
        )
        session = self.grid.sessions[SEAT]
        self.loader = Loader()
        self.models = LoadedModels(self.loader, 0, session.renew_soon)
        self.started: list[tuple[str, float]] = []
        session._warm = lambda: [f"bench:{name}" for name in self.models.list_warm()]
        session._pass_over = lambda: {
            f"bench:{name}": self.models.get_patience() for name in self.models.list_crowded()
        }

    def run(self, call: StageCall, value: Json, context: StageContext) -> Json:
        assert call.queue is not None
        name = call.queue.partition(":")[2]
        with self.models.use(Model(name=name, file="x"), context):
            self.started.append((name, time.monotonic()))
            time.sleep(REQUEST_SECONDS)
        return name

    def ask(self, name: str, priority: str = "interactive") -> float:
        """Return how long a request for a model took."""
        began = time.monotonic()
        client = self.grid.client
        client.result(client.submit({"root": stage("bench_echo", slug=name)}, 1, priority=priority), 60)
        return time.monotonic() - began

    def ask_all(self, names: list[str]) -> tuple[float, int]:
        """Return the seconds and the loads of these requests, from CLIENTS clients."""
        began, loads = time.monotonic(), self.models.loads
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self.ask, names))
        return time.monotonic() - began, self.models.loads - loads


@pytest.fixture
def seat(grid_env: GridEnv) -> Iterator[Seat]:
    made = Seat(grid_env)
    with made.grid:
        yield made


def test_models_that_alternate_are_loaded_about_as_often_as_in_the_best_order(seat: Seat) -> None:
    seat.loader.known_seconds = KNOWN_SECONDS
    names = list(itertools.islice(itertools.cycle(("one", "two")), REQUESTS))
    seat.ask("one")
    best, best_loads = seat.ask_all(sorted(names))
    seat.ask("one")
    began = len(seat.started)
    seconds, loads = seat.ask_all(names)
    runs = itertools.groupby(name for name, _ in seat.started[began:])
    print("runs:", ", ".join(f"{len(list(each))} {name}" for name, each in runs))
    print(f"best order {best:.2f} s, {best_loads} loads; alternating {seconds:.2f} s, {loads} loads")
    assert best_loads == 1
    assert loads <= 4


def test_no_request_starves_while_the_loaded_model_always_has_work(seat: Seat) -> None:
    seat.ask("two")
    seat.ask("one")
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            seat.ask("one")

    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(CLIENTS):
            pool.submit(busy)
        try:
            time.sleep(0.5)
            assert seat.models.list_names() == ["one"]
            waited = seat.ask("two")
        finally:
            over.set()
    assert 0.5 < waited < seat.models.get_patience() + 5 * LOAD_SECONDS + 2
