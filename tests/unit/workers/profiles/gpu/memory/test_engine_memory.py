"""The memory of engines that gridq starts, in the books of their devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import SeatUnavailable
from tests.waiting import wait_for
from workers.profiles.gpu.devices import discovery
from workers.profiles.gpu.devices.device import Device
from workers.profiles.gpu.memory import engine_memory
from workers.profiles.gpu.memory.device_book import BOOKS_VARIABLE, DeviceBook, Refusal, Reservation
from workers.profiles.gpu.memory.engine_memory import EngineMemory
from workers.profiles.gpu.running_engines import launched_engine
from workers.profiles.gpu.running_engines.launched_engine import LaunchedEngine

CPU = Device("cpu", "CPU", "intel", "cpu", memory_mb=8000, free_mb=8000)
"""A device of which models may use 6000 MB."""

HEAVY = "import time; held = bytearray(200 * 2**20); print('ready', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceBook:
    monkeypatch.setenv(BOOKS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(discovery, "find_devices", lambda *_, **__: ([CPU], []))
    monkeypatch.setattr(engine_memory, "MEASURE_SECONDS", 0.0)
    return DeviceBook("cpu")


def reserve(book: DeviceBook, mb: int) -> Reservation | Refusal:
    return book.reserve(mb, total_mb=6000, free_mb=None, holder="a model", model="m")


@pytest.fixture
def heavy() -> Iterator[int]:
    """A process whose child holds 200 MB."""
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HEAVY!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_an_engine_reserves_what_it_is_declared_to_take(book: DeviceBook) -> None:
    memory = EngineMemory("vllm", None, 4000)
    assert memory.reserve() == ""
    assert isinstance(reserve(book, 2001), Refusal)
    memory.release()
    assert isinstance(reserve(book, 6000), Reservation)


def test_an_engine_waits_for_memory_that_models_hold(book: DeviceBook) -> None:
    model = reserve(book, 3000)
    assert isinstance(model, Reservation)
    memory = EngineMemory("vllm", ["cpu"], 4000)
    assert memory.reserve() == "it needs 4000 MB, and cpu has 3000 MB free of 6000"
    model.release()
    assert memory.reserve() == ""


def test_the_book_has_what_a_running_engine_is_measured_to_take(book: DeviceBook, heavy: int) -> None:
    for declared, least in ((None, 200), (100, 200), (900, 900)):
        memory = EngineMemory("vllm", None, declared)
        assert memory.reserve() == ""
        memory.settle(heavy)
        [entry] = book.read()
        assert least <= entry["mb"] < least + 60
        assert isinstance(reserve(book, 6000 - least + 1), Refusal)
        memory.release()
        assert book.read() == []


def test_what_an_engine_already_took_of_its_reservation_counts_once(book: DeviceBook, heavy: int) -> None:
    memory = EngineMemory("vllm", None, 900)
    memory.reserve()
    memory.settle(heavy)
    free_mb = 1500  # by the driver, beside what is taken
    for mb, fits in ((700, True), (900, False)):
        found = book.reserve(
            mb, total_mb=6000, free_mb=free_mb, holder="h", model="m",
            measure=lambda pid: engine_memory.measure_on(CPU, pid),
        )  # fmt: skip
        assert isinstance(found, Reservation) == fits
        if isinstance(found, Reservation):
            found.release()


def test_an_engine_that_waits_for_one_book_holds_nothing_in_another(
    book: DeviceBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(CPU, device="other")
    monkeypatch.setattr(discovery, "find_devices", lambda *_, **__: ([CPU, other], []))
    (tmp_path / "other.json.lock").mkdir()
    with pytest.raises(SeatUnavailable):
        EngineMemory("vllm", ["cpu", "other"], 4000).reserve()
    assert book.read() == []


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ValueError, match="gpu77"):
        EngineMemory("vllm", ["gpu77"], 100).reserve()


def test_an_engine_of_declared_memory_waits_for_a_book_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched_engine, "MEMORY_RETRY_SECONDS", 0.05)
    folder = tmp_path / "books"
    folder.write_text("no folder")
    monkeypatch.setenv(BOOKS_VARIABLE, str(folder))
    urls: list[str] = []
    options: dict[str, Any] = {"env": {}, "devices": None, "pass_env": (), "memory_mb": 4000}
    engine = LaunchedEngine((sys.executable, "-c", HEAVY), tmp_path / "e.log", urls.append, **options)
    engine.start()
    try:
        wait_for(lambda: str(folder) in engine.reason)
        assert urls == []
        folder.unlink()
        wait_for(lambda: len(urls) == 1)
    finally:
        engine.close()


def test_an_engine_is_used_although_its_book_cannot_be_written(
    book: DeviceBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heavy: int
) -> None:
    folder = tmp_path / "books"
    folder.write_text("no folder")
    monkeypatch.setenv(BOOKS_VARIABLE, str(folder))
    memory = EngineMemory("vllm", None, None)
    assert memory.reserve() == ""
    memory.settle(heavy)
    folder.unlink()
    memory.settle(heavy)
    [entry] = book.read()
    assert entry["mb"] >= 200
    memory.release()


def test_an_engine_is_started_once_there_is_room(
    book: DeviceBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched_engine, "MEMORY_RETRY_SECONDS", 0.05)
    model = reserve(book, 3000)
    assert isinstance(model, Reservation)
    urls: list[str] = []
    options: dict[str, Any] = {"env": {}, "devices": None, "pass_env": (), "memory_mb": 4000}
    engine = LaunchedEngine((sys.executable, "-c", HEAVY), tmp_path / "e.log", urls.append, **options)
    engine.start()
    try:
        wait_for(lambda: "4000 MB" in engine.reason)
        time.sleep(0.2)
        assert urls == []
        model.release()
        wait_for(lambda: len(urls) == 1)
        [entry] = book.read()
        assert entry["mb"] == 4000
        # so it stays reserved while an engine lives whose worker was killed before it was measured
        assert engine._process is not None
        assert entry["child"][0] == engine._process.pid
    finally:
        engine.close()
    assert book.read() == []
