"""A load and an unload on a card: what the driver says of its memory decides when it is free again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.nvml import GB, Driver
from workers.profiles.gpu import model_loader
from workers.profiles.gpu.capability import GpuSeat
from workers.profiles.gpu.memory.device_book import BOOKS_VARIABLE, DeviceBook, Reservation
from workers.profiles.gpu.model_loader import Hold, ModelLoader

PID = 4_000_000
"""Above the largest process id."""


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceBook]:
    monkeypatch.setenv(BOOKS_VARIABLE, str(tmp_path / "books"))
    return DeviceBook("GPU-0", tmp_path / "books")


def unload(driver: Driver, home: Path) -> threading.Thread:
    """Begin to unload a model of 8 GB, whose process has just ended, from a card of 24 GB."""
    driver.add_card(free=10 * GB)
    driver.add_process("0", PID, 8 * GB)
    seat = GpuSeat(device="gpu0", backend="cuda", uuid="GPU-0", memory_mb=24_000, engine="xllamacpp")
    loader = ModelLoader(seat, home)
    reservation = loader.reserve_memory(8 * 1024, "m")
    assert isinstance(reservation, Reservation)
    process: Any = SimpleNamespace(pid=PID, is_alive=False, close=lambda: driver.remove_processes("0"))
    plan: Any = None
    thread = threading.Thread(target=loader.unload, args=(process, Hold(plan, reservation)))
    thread.start()
    return thread


def test_memory_is_given_back_once_the_driver_reports_it_as_free(
    driver: Driver, book: DeviceBook, tmp_path: Path
) -> None:
    thread = unload(driver, tmp_path)
    time.sleep(0.5)
    assert len(book.read()) == 1, "the process is gone, and its memory is not free yet"
    driver.set(**{"0.free": 18 * GB})
    thread.join(10)
    assert book.read() == []


def test_a_driver_that_never_reports_it_is_waited_for_a_while_only(
    driver: Driver, book: DeviceBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loader, "RETURN_SECONDS", 0.3)
    unload(driver, tmp_path).join(10)
    assert book.read() == []
