"""The run times that a seat remembers."""

from __future__ import annotations

import math
import random

import pytest

from gridq.protocol.running_times import MAX_QUEUES, MEMORY_STAGES, RunTimes, summarize


def record(*seconds: float, queue: str = "bench:any") -> RunTimes:
    durations = RunTimes()
    for one in seconds:
        durations.record(queue, one)
    return durations


def test_one_measurement_gives_all_statistics() -> None:
    found = record(2.5).get_service_times()["bench:any"]
    assert (found.n, found.mean, found.p50, found.p90) == (1, 2.5, 2.5, 2.5)


def test_a_queue_without_measurements_has_no_statistics() -> None:
    assert RunTimes().get_service_times() == {}


def test_a_constant_has_no_spread() -> None:
    found = record(*[0.2] * 500).get_service_times()["bench:any"]
    assert found.mean == found.p50 == found.p90 == pytest.approx(0.2)


def test_the_middle_and_the_ninth_of_ten_are_those_of_the_samples() -> None:
    dice = random.Random(7)
    samples = sorted(dice.lognormvariate(0.0, 0.5) for _ in range(20_000))
    mean = sum(samples) / len(samples)
    variance = sum((one - mean) ** 2 for one in samples) / len(samples)
    found = summarize(len(samples), mean, variance)
    assert found.p50 == pytest.approx(samples[10_000], rel=0.05)
    assert found.p90 == pytest.approx(samples[18_000], rel=0.05)


def test_recent_measurements_count_most() -> None:
    found = record(*[1.0] * 1000, *[3.0] * (3 * MEMORY_STAGES)).get_service_times()["bench:any"]
    assert found.n == 1000 + 3 * MEMORY_STAGES
    assert 2.8 < found.mean < 3.0


def test_few_measurements_are_given_a_wider_spread() -> None:
    one, many = (record(*[1.0] * count).estimate_ms(["bench:any"])["bench:any"] for count in (1, 500))
    assert 1_900 < one < 2_200
    assert 1_100 < many < 1_300
    wild = record(*[0.1, 4.0] * 100)
    assert wild.estimate_ms(["bench:any"])["bench:any"] == pytest.approx(
        1000 * wild.get_service_times()["bench:any"].p90, abs=1
    )
    assert wild.estimate_ms(["bench:other"]) == {}


def test_run_times_of_zero_are_accepted() -> None:
    found = record(0.0, 0.0).get_service_times()["bench:any"]
    assert found.p90 == 0.0
    assert not math.isnan(found.mean)


def test_queues_are_apart_and_the_least_recently_served_is_forgotten() -> None:
    durations = record(1.0, queue="old:one")
    durations.record("kept:one", 1.0)
    for number in range(MAX_QUEUES - 1):
        durations.record(f"new:{number}", 2.0)
        durations.record("kept:one", 1.0)
    found = durations.get_service_times()
    assert "old:one" not in found
    assert found["kept:one"].mean == 1.0
    assert len(found) == MAX_QUEUES
