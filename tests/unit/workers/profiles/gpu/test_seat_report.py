"""The metrics and details of a gpu seat."""

from __future__ import annotations

import collections
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gridq.profiles.metric_keys import MAX_DETAILS_CHARACTERS, parse_metric
from gridq.profiles.profile import StageContext
from tests.fakes.nvml import GB
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.devices.device import DeviceProcess, Reading
from workers.profiles.gpu.loaded_models import LoadedModels
from workers.profiles.gpu.seat_report import METRIC_HELPS, make_details, make_metrics

MODELS: Any = SimpleNamespace(
    list_loaded=lambda: [],
    list_loading=dict,
    loads=3,
    load_seconds=4.5,
    use_seconds=7.0,
    unloads=collections.Counter({"room": 2}),
)
NO_STAGES: Any = SimpleNamespace(list_running=list, sum_seconds=lambda: 0.0)
SEAT = GpuSeat(device="gpu0", backend="cuda", uuid="GPU-1", memory_mb=24_064)
CARD = GpuCapability(device="gpu0", name="x", vendor="nvidia", backend="cuda", memory_mb=24_576)


def test_metrics_are_in_base_units_and_the_memory_adds_up() -> None:
    reading = Reading(
        24 * 1024, 20 * 1024, 512, (), utilisation=0.5, temperature=61.0, power_watts=100.0, energy_joules=9.5
    )
    found = make_metrics(reading, MODELS, NO_STAGES)
    parts = {use: found[f'gpu_memory_bytes{{use="{use}"}}'] for use in ("used", "orphan", "foreign")}
    rest = [found[f'gpu_memory_bytes{{use="{use}"}}'] for use in ("reserved", "free")]
    assert sum(parts.values()) + sum(rest) == 24 * GB
    assert found["gpu_utilisation_ratio"] == 0.5
    assert found["gpu_energy_joules_total"] == 9.5
    assert found['model_evictions_total{cause="room"}'] == 2
    for key in found:
        parsed = parse_metric(key)
        assert parsed is not None
        assert {parsed[0], parsed[0].rpartition("_")[0]} & METRIC_HELPS.keys()


def test_what_the_driver_does_not_tell_is_absent_not_zero() -> None:
    found = make_metrics(Reading(1000, 500), MODELS, NO_STAGES)
    assert not any("temperature" in key or "energy" in key or "utilisation" in key for key in found)
    assert make_metrics(None, MODELS, NO_STAGES)["gpu_seconds_total"] == 7


def test_details_stay_within_their_bound() -> None:
    many = tuple(DeviceProcess(1000 + number, number, "x" * 15) for number in range(64))
    details = make_details(SEAT, CARD, Reading(24_576, 1, 0, many), MODELS, NO_STAGES)
    assert [each["memory_mb"] for each in details["processes"]] == list(range(63, 55, -1))
    assert len(str(details)) < MAX_DETAILS_CHARACTERS / 4
    assert details["device"]["uuid"] == "GPU-1"


def test_a_model_says_who_is_running_it_and_who_was_last() -> None:
    loader: Any = SimpleNamespace(
        reserve=lambda model: SimpleNamespace(mb=100, release=lambda: None),
        load=lambda model, hold, context: SimpleNamespace(is_alive=True),
        unload=lambda process, hold: None,
        get_load_seconds=lambda name: None,
        make_short_error=lambda model, refusal: None,
    )
    models, began, go = LoadedModels(loader), threading.Event(), threading.Event()
    model = Model(name="m", file="m.gguf")

    def show() -> dict[str, Any]:
        (row,) = make_details(SEAT, CARD, None, models, NO_STAGES)["models"]
        return row

    def use() -> None:
        with models.use(model, StageContext(agent="ann")):
            began.set()
            go.wait(10)

    models.load(model, StageContext())
    assert (show()["running"], show()["used_at"]) == (0, None), "an operator's load is no use"
    thread = threading.Thread(target=use)
    thread.start()
    began.wait(10)
    with models.use(model, StageContext(agent="bob")):
        assert (show()["running"], show()["agent"]) == (2, "bob")
        time.sleep(0.02)
    go.set()
    thread.join()
    assert show()["running"] == 0
    assert show()["used_at"] == pytest.approx(time.time(), abs=5)
    assert models.use_seconds >= 0.04, "two stages at once count twice, as they are billed"
    models.close()
