"""The sampler of a seat's device: nothing that it reads makes anybody wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.fakes.nvml import Driver
from tests.waiting import wait_for
from workers.profiles.gpu.devices import sampler
from workers.profiles.gpu.devices.sampler import Sampler

Start = Callable[..., Sampler]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def make(on_change: Callable[[], None] = lambda: None, uuid: str = "GPU-0") -> Sampler:
            made = Sampler("cuda", uuid, on_change, seconds=0.05)
            stack.callback(made.stop)
            return made

        yield make


def test_a_device_is_read_again_and_again(driver: Driver, start: Start) -> None:
    driver.add_card(temperature=50)
    made = start()
    wait_for(lambda: made.reading is not None and made.reading.temperature == 50)
    driver.set(**{"0.temperature": 70})
    wait_for(lambda: made.reading is not None and made.reading.temperature == 70)
    assert made.fault == ""


def test_a_device_that_is_lost_is_a_fault_until_it_is_back(driver: Driver, start: Start) -> None:
    driver.add_card()
    faults: list[str] = []
    made = start(lambda: faults.append(made.fault))
    wait_for(lambda: made.reading is not None)
    driver.set(**{"0.lost": 1})
    wait_for(lambda: made.fault != "")
    assert "GPU is lost" in made.fault
    driver.set(**{"0.lost": None})
    wait_for(lambda: made.fault == "")
    wait_for(lambda: len(faults) == 2)
    assert [bool(fault) for fault in faults] == [True, False], "told once each"


def test_a_wedged_driver_is_a_fault_and_one_slow_answer_is_none(
    driver: Driver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.add_card()
    made = start()
    wait_for(lambda: made.reading is not None)
    driver.hang("nvmlDeviceGetMemoryInfo_v2")
    time.sleep(2)  # longer than the limit of a call
    assert made.fault == ""
    monkeypatch.setattr(sampler, "WEDGED_SECONDS", 1.0)
    wait_for(lambda: made.fault != "")
    assert "has not answered" in made.fault
    began = time.monotonic()
    made.stop()
    assert time.monotonic() - began < 0.5, "nobody waits for a wedged driver"
    driver.end_hangs()


def test_a_server_that_is_away_does_not_end_the_samples(driver: Driver, start: Start) -> None:
    driver.add_card()

    def fail() -> None:
        raise ConnectionError("away")

    made = start(fail)
    wait_for(lambda: made.reading is not None)
    driver.set(**{"0.lost": 1})
    wait_for(lambda: made.fault != "")
    driver.set(**{"0.lost": None, "0.free": 1024**3})
    wait_for(lambda: made.reading is not None and made.reading.free_mb == 1024)
