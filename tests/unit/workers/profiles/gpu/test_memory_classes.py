"""Ladders make "at least" a queue's name; numbers are compared as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridq.errors import InvalidField
from gridq.protocol.models import Effect
from workers.profiles.gpu.capability import GpuCapability
from workers.profiles.gpu.memory_classes import (
    MEMORY_CLASSES_GB,
    explain_mismatch,
    find_seconds,
    list_memory_classes,
    list_queues,
    matches,
    parse_demand,
    parse_gpu_demand,
)
from workers.profiles.gpu.profile import GpuProfile


def gpu(**fields: object) -> Effect:
    return Effect(effect="Gpu", **fields)


def card(memory_mb: int, **fields: object) -> GpuCapability:
    defaults = {"device": "gpu0", "name": "x", "vendor": "nvidia", "backend": "cuda", "compute_cap": "8.9"}
    return GpuCapability.model_validate({**defaults, "memory_mb": memory_mb, **fields})


@pytest.mark.parametrize(
    ("fields", "queue"),
    [
        ({"backend": "cuda", "memory_mb": 18000, "compute_cap": "8.0"}, "gpu:cuda-24g"),
        ({"backend": "cuda", "memory_mb": 8192}, "gpu:cuda-8g"),
        ({"backend": "cuda", "memory_mb": 8193}, "gpu:cuda-12g"),
        ({"backend": "cuda", "memory_mb": 24_000.5}, "gpu:cuda-24g"),
        ({"backend": "cuda", "memory_mb": 150_000}, "gpu:cuda-192g"),
        ({"backend": "metal", "memory_mb": 30_000}, "gpu:metal-32g"),
        ({"backend": "cuda"}, "gpu:cuda"),
        ({"backend": "cpu"}, "gpu:cpu"),
        ({"backend": "cpu", "memory_mb": 18000}, "gpu:cpu"),
        ({}, "gpu:any"),
        ({"memory_mb": 18000}, "gpu:any-24g"),
        ({"compute_cap": "8.0"}, "gpu:cuda"),
        ({"compute_cap": 8.0, "memory_mb": 1}, "gpu:cuda-8g"),
        ({"min_compute": "8.9"}, "gpu:cuda"),
        ({"backend": "rocm", "memory_mb": 20_000}, "gpu:rocm-24g"),
    ],
)
def test_a_demand_has_its_memory_class_queue(fields: dict[str, object], queue: str):
    demand = parse_gpu_demand(gpu(**fields))
    assert demand is not None
    assert demand.queue == queue


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"backend": "vulkan"}, "backend"),
        ({"memory_mb": "18000"}, "memory_mb"),
        ({"memory_mb": -1}, "memory_mb"),
        ({"memory_mb": True}, "memory_mb"),
        ({"memory_mb": 10**6}, "memory_mb"),
        ({"memory_mb": float("nan")}, "memory_mb"),
        ({"memory_mb": 0}, "memory_mb"),
        ({"memory_mb": float("nan"), "backend": "cpu"}, "memory_mb"),
        ({"memory_mb": 10**400, "backend": "cpu"}, "memory_mb"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": 1e12}, "seconds"),
        ({"seconds": "3"}, "seconds"),
        ({"protected": "yes"}, "protected"),
        ({"compute_cap": "sm_80"}, "compute_cap"),
        ({"backend": "metal", "compute_cap": "8.0"}, "compute_cap"),
        ({"backend": "rocm", "min_compute": "8.0"}, "min_compute"),
        ({"min_compute": "new"}, "min_compute"),
        ({"min_compute": "8.0", "compute_cap": "8.0"}, "compute_cap"),
        ({"memory_mb": 8000, "memory": 1}, "memory"),
    ],
)
def test_a_wrong_effect_names_its_field(fields: dict[str, object], field: str):
    with pytest.raises(InvalidField) as caught:
        parse_gpu_demand(gpu(**fields))
    assert caught.value.path == f"effects.{field}"


@pytest.mark.parametrize(("field", "fix"), [("memory_gb", "use 'memory_mb'"), ("vendor", "remove it")])
def test_a_field_that_does_not_exist_is_refused_with_the_one_that_was_meant(field: str, fix: str):
    with pytest.raises(InvalidField) as caught:
        parse_gpu_demand(gpu(**{field: 8}))
    assert caught.value.details["fix"] == fix
    assert "memory_mb" in str(caught.value.expected)


@pytest.mark.parametrize(
    ("memory_mb", "largest"),
    [
        (6_144, None),
        (8_188, 8),
        (11_264, 8),  # RTX 2080 Ti
        (12_282, 12),
        (15_109, 16),  # T4 with error correction
        (23_034, 24),  # L4
        (24_564, 24),  # RTX 4090
        (32_607, 32),  # RTX 5090
        (40_960, 32),  # A100
        (46_068, 48),  # L40S
        (81_559, 80),  # H100
        (97_887, 96),  # RTX PRO 6000
        (143_771, 141),  # H200
        (183_359, 192),  # B200
    ],
)
def test_real_cards_have_their_memory_class(memory_mb: int, largest: int | None):
    assert (list_memory_classes(memory_mb) or [None])[0] == largest


def test_a_32_gb_card_serves_its_class_and_all_below_the_nearest_first():
    served = list_queues(card(32_607))
    assert served[:6] == [
        "gpu:cuda-32g",
        "gpu:cuda-24g",
        "gpu:cuda-16g",
        "gpu:cuda-12g",
        "gpu:cuda-8g",
        "gpu:cuda",
    ]
    assert "gpu:any" in served
    assert not any(queue.startswith("llm:") for queue in served)


def test_a_cpu_serves_only_its_own_name_and_its_models():
    models = [{"name": "m-1", "families": ["m"]}]
    assert list_queues(card(64_000, backend="cpu", compute_cap=None, models=models)) == [
        "gpu:cpu",
        "llm:m-1",
        "llm:m",
        "llm:any",
    ]


@pytest.mark.parametrize(
    ("has", "wants", "met"),
    [
        ("10.0", "7.0", True),
        ("7.0", "10.0", False),
        ("8.9", "8.10", False),
        ("8.0", "8", True),
        ("12.0", "9.0", True),
        ("8.9", "12.0", False),
    ],
)
def test_compute_capabilities_are_numbers(has: str, wants: str, met: bool):
    demand = parse_gpu_demand(gpu(compute_cap=wants))
    assert demand is not None
    assert matches(demand, card(24_564, compute_cap=has)) is met


def test_headroom_is_no_memory_for_a_stage():
    """24,564 MB of which 512 stay free: 24,052 are for a stage, and not one more."""
    l4 = card(24_564, usable_mb=24_564 - 512)
    for memory_mb, met in ((24_052, True), (24_053, False)):
        demand = parse_gpu_demand(gpu(backend="cuda", memory_mb=memory_mb))
        assert demand is not None
        assert demand.queue == "gpu:cuda-24g"
        assert matches(demand, l4) is met
    why = explain_mismatch(demand, l4)
    assert all(number in why for number in ("24053", "24564", "512"))


def test_a_device_without_a_known_compute_capability_meets_no_minimum():
    demand = parse_gpu_demand(gpu(min_compute="7.0"))
    assert demand is not None
    assert "7.0" in explain_mismatch(demand, card(24_564, compute_cap=None))


def test_a_mismatch_is_explained_with_numbers():
    wide = parse_gpu_demand(gpu(backend="cuda", memory_mb=24_000))
    assert wide is not None
    assert "needs 24000 MB, gpu0 has 23034 MB" in explain_mismatch(wide, card(23_034))
    new = parse_gpu_demand(gpu(compute_cap="9.0"))
    assert new is not None
    assert "9.0" in explain_mismatch(new, card(23_034))


def test_an_llm_demand_is_met_by_a_model_that_fits_it():
    demand = parse_demand(Effect(effect="Llm", model="m", context=4000))
    assert demand is not None
    assert matches(demand, card(24_564, models=[{"name": "m-1", "families": ["m"], "context": 8192}]))
    assert not matches(demand, card(24_564, models=[{"name": "m-1", "families": ["m"], "context": 2048}]))
    assert not matches(demand, card(24_564))


@given(st.integers(1, MEMORY_CLASSES_GB[-1] * 1024), st.integers(0, 300_000))
def test_a_card_that_is_large_enough_always_serves_the_queue(memory_mb: int, has: int):
    """No stage waits in a queue that no sufficient card of a known class listens to."""
    demand = parse_gpu_demand(gpu(backend="cuda", memory_mb=memory_mb))
    assert demand is not None
    size = int(demand.queue.removeprefix("gpu:cuda-").removesuffix("g"))
    if has >= size * 1024:
        assert matches(demand, card(has))
    if has < memory_mb:
        assert not matches(demand, card(has))


def test_families_are_those_of_the_model_that_serves_the_queue() -> None:
    """The device's preferred model counts, whichever queue asked for it."""
    models = [
        {"name": "Small-1", "families": ["small"], "context": 4096, "memory_mb": 100},
        {"name": "big", "families": ["small"], "context": 4096, "memory_mb": 900},
    ]
    families = GpuProfile().families(card(24_000, models=models))
    assert families == {
        "llm:small-1": ["small-1", "small"],
        "llm:small": ["small-1", "small"],
        "llm:any": ["small-1", "small"],
        "llm:big": ["big", "small"],
    }


def test_a_python_stage_needs_its_module_and_a_protected_one_the_owners_consent():
    demand = parse_gpu_demand(gpu(memory_mb=8000, protected=True, seconds=3))
    assert demand is not None
    assert demand.needs == {"memory_mb": 8000, "protected": True}
    assert matches(demand, card(24_000))
    assert "protected" in explain_mismatch(demand, card(24_000, protected=False))
    python = demand.model_copy(update={"needs": {**demand.needs, "module": "my.stages"}})
    assert "my.stages" in explain_mismatch(python, card(24_000))
    assert matches(python, card(24_000, modules=["other", "my.stages"]))


def test_seconds_are_those_of_the_gpu_effect():
    assert find_seconds([Effect(effect="Pure"), gpu(seconds=2.5)]) == 2.5
    assert find_seconds([gpu()]) is None
