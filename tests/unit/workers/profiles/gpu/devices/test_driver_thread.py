"""One thread for a driver: what hangs holds it, and nobody else."""

from __future__ import annotations

import threading
import time

import pytest

from workers.profiles.gpu.devices.device import DriverTimeout
from workers.profiles.gpu.devices.driver_thread import DriverThread


def count_threads(name: str) -> int:
    return sum(thread.name == f"gridq-{name}" for thread in threading.enumerate())


def test_results_and_errors_come_back() -> None:
    thread = DriverThread("first")
    assert thread.call(lambda: 3, 5) == 3
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0, 5)
    assert thread.stuck_seconds == 0


def test_a_driver_that_raises_a_timeout_of_its_own_has_answered() -> None:
    def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        DriverThread("second").call(late, 5)


def test_a_hang_costs_one_thread_however_often_it_is_asked() -> None:
    thread, end, ran = DriverThread("third"), threading.Event(), []
    with pytest.raises(DriverTimeout):
        thread.call(end.wait, 0.05)
    with pytest.raises(DriverTimeout):
        thread.call(lambda: ran.append(0), 0.5)  # it waits in the line, until it is given up
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(DriverTimeout):
            thread.call(lambda: ran.append(1), 0.05)
    assert time.monotonic() - began < 2
    assert count_threads("third") == 1
    end.set()
    assert thread.call(lambda: "again", 5) == "again"
    assert ran == [], "calls that were given up are not made later"
