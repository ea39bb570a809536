"""Which cards get models: headroom and the least compute capability bind, by numbers."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import ConfigError
from tests.fakes.nvml import GB, Driver
from workers.profiles.gpu import probe as module
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.probe import probe

MODEL = "smollm2-135m-instruct"
ENVIRON = {"GRIDQ_ENGINE": "xllamacpp", "GRIDQ_SKIP_ENGINES": "1"}


@pytest.fixture(autouse=True)
def _engine_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed engine was built for the CPU alone."""
    monkeypatch.setattr(module, "_list_backends", lambda engine: ["cpu", "cuda"])


def look(**table: Any) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return the models of each card, and what is said to be missing."""
    report = probe({"cpu": False, "pulls": False, **table}, ENVIRON)
    offers = {each.name: GpuCapability.model_validate(each.capability).models for each in report.found}
    return {name: tuple(each.name for each in models) for name, models in offers.items()}, " ".join(
        report.missing
    )


def test_cards_before_volta_get_no_models_unless_their_owner_says_so(driver: Driver) -> None:
    driver.add_card(name="GTX 1080", compute="6 1")
    driver.add_card(name="RTX 5090", compute="12 0")
    found, missing = look()
    assert MODEL not in found["gpu0"]
    assert MODEL in found["gpu1"], 'as text, "12.0" would be less than "7.0"'
    assert "6.1" in missing
    assert "min_compute" in missing
    assert MODEL in look(min_compute="6.0")[0]["gpu0"]
    assert MODEL not in look(min_compute=12.1)[0]["gpu1"]


def test_a_model_may_need_a_newer_card_than_others(driver: Driver) -> None:
    driver.add_card(compute="8 0")
    own = next(model for model in module.list_models([], module.settings().home) if model.name == MODEL)
    table = {**own.model_dump(exclude_none=True), "name": "picky", "min_compute": "8.9"}
    found, missing = look(models=[table])
    assert "picky" not in found["gpu0"]
    assert MODEL in found["gpu0"]
    assert "picky needs compute capability 8.9, it has 8.0" in missing
    driver.set(**{"0.compute": "8 9"})
    assert "picky" in look(models=[table])[0]["gpu0"]


def test_head_room_stays_free(driver: Driver) -> None:
    driver.add_card(total=4 * GB, free=4 * GB)
    report = probe({"cpu": False}, ENVIRON)
    [offer] = report.found
    assert GpuSeat.model_validate(offer.config).memory_mb == 4096 - 512
    assert GpuCapability.model_validate(offer.capability).usable_mb == 4096 - 512
    [offer] = probe({"cpu": False, "headroom_mb": 4000}, ENVIRON).found
    assert GpuSeat.model_validate(offer.config).memory_mb == 96
    assert MODEL not in look(headroom_mb=4000)[0]["gpu0"]


def test_a_card_with_less_memory_than_its_head_room_is_no_seat_and_says_why(driver: Driver) -> None:
    driver.add_card(total=256 * 2**20, free=256 * 2**20)
    found, missing = look()
    assert found == {}
    assert "gpu0" in missing
    assert "256 MB" in missing
    assert "headroom_mb" in missing


def test_a_card_whose_memory_is_all_in_use_is_a_seat(driver: Driver) -> None:
    """It has room again later."""
    driver.add_card(total=4 * GB, free=0)
    [offer] = probe({"cpu": False}, ENVIRON).found
    assert GpuSeat.model_validate(offer.config).memory_mb == 4096 - 512
    assert MODEL in look()[0]["gpu0"]


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"memory_mb": 0}, "gpu.memory_mb"),
        ({"headroom_mb": -1}, "gpu.headroom_mb"),
        ({"headroom_mb": "much"}, "gpu.headroom_mb"),
        ({"min_compute": "sm_70"}, "gpu.min_compute"),
        ({"min_compute": True}, "gpu.min_compute"),
    ],
)
def test_a_wrong_limit_names_its_field(table: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(table, ENVIRON)
    assert caught.value.path == path
