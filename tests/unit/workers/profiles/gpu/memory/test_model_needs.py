"""How much memory a model needs: what was measured, else the dry run, else the header."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from gridq.errors import ModelFileError
from tests.gguf_files import write_gguf
from workers.model_apis.model_catalogue import KvType
from workers.profiles.gpu.engines.base import KV_TYPES
from workers.profiles.gpu.memory import model_needs
from workers.profiles.gpu.memory.dry_run import DryRun
from workers.profiles.gpu.memory.gguf_file import GgufHeader, read_gguf
from workers.profiles.gpu.memory.model_needs import GPU_CONTEXT_MB, WORKING_MB, ModelNeeds, Need, compute_need
from workers.profiles.gpu.model_process import LoadOrder

CPU = LoadOrder("m", "xllamacpp", Path("m.gguf"), 1024, 2, 1, 0, False, {})
CARD = replace(CPU, gpu_layers=-1)


@pytest.fixture
def header(tmp_path: Path) -> GgufHeader:
    return read_gguf(write_gguf(tmp_path / "m.gguf"), "m")


@pytest.fixture
def needs(tmp_path: Path) -> ModelNeeds:
    return ModelNeeds(tmp_path)


def record(needs: ModelNeeds, order: LoadOrder, header: GgufHeader, mb: int, **fields: int) -> None:
    needs.record(order, header, "cpu", "1.0", device_mb=mb, load_seconds=2.5, **fields)


def test_the_header_counts_keys_and_values_of_each_slot(header: GgufHeader):
    """Two layers, two heads of 16, both for keys and values, 2 bytes each: 256 bytes a token."""
    wide = replace(CPU, context=2**20, concurrency=1)
    grown = (
        compute_need(replace(wide, concurrency=2), header).device_mb - compute_need(wide, header).device_mb
    )
    assert grown == 2**20 * 2 * 2 * 2 * 16 * 2 // 2**20


@pytest.mark.parametrize(("kv_type", "bytes_per_block"), [("f32", 128), ("q8_0", 34), ("q4_0", 18)])
def test_the_type_of_keys_and_values_counts(header: GgufHeader, kv_type: str, bytes_per_block: int):
    """A block has 32 elements: the sizes of llama.cpp's types."""
    wide = replace(CPU, context=2**20, concurrency=1, kv_type=kv_type)
    grown = (
        compute_need(replace(wide, concurrency=2), header).device_mb - compute_need(wide, header).device_mb
    )
    assert grown == 2**20 * 2 * 2 * 2 * 16 * bytes_per_block // 32 // 2**20


def test_what_was_measured_holds_for_its_type_of_keys_and_values(needs: ModelNeeds, header: GgufHeader):
    record(needs, CARD, header, 700)
    assert needs.find(replace(CARD, kv_type="q8_0"), header, "cpu", "1.0").source == "header"


def test_the_types_that_a_table_may_state_are_those_of_the_engines():
    assert set(get_args(KvType)) == set(KV_TYPES)


def test_what_was_measured_comes_before_the_header(needs: ModelNeeds, header: GgufHeader):
    assert needs.find(CARD, header, "cpu", "1.0").source == "header"
    record(needs, CARD, header, 700, host_mb=60)
    assert needs.find(CARD, header, "cpu", "1.0") == Need(700, 60, "measured", 2.5)


def test_on_the_cpu_a_plan_is_never_below_the_dry_run(
    needs: ModelNeeds, header: GgufHeader, monkeypatch: pytest.MonkeyPatch
):
    """A process there touches its buffers only as it uses them."""
    monkeypatch.setattr(model_needs, "dry_run", lambda order: DryRun(host_mb=500, process_mb=60))
    dry = needs.determine(CPU, header, "cpu", "1.0", can_dry_run=True)
    assert dry == Need(500 + 60 + WORKING_MB, 0, "dry run")
    record(needs, CPU, header, 200)
    assert needs.find(CPU, header, "cpu", "1.0").device_mb == 592
    record(needs, CPU, header, 900)
    assert needs.find(CPU, header, "cpu", "1.0").device_mb == 900


def test_a_dry_run_on_a_card_counts_its_context_and_the_host_apart(
    needs: ModelNeeds, header: GgufHeader, monkeypatch: pytest.MonkeyPatch
):
    runs = []
    monkeypatch.setattr(model_needs, "dry_run", lambda order: runs.append(order) or DryRun(900, 50, 60))
    for _ in range(2):
        need = needs.determine(CARD, header, "GPU-1", "1.0", can_dry_run=True)
        assert need == Need(900 + GPU_CONTEXT_MB, 50 + 60 + WORKING_MB, "dry run")
    assert len(runs) == 1, "its result is kept"


def test_the_highest_measurement_stays(needs: ModelNeeds, header: GgufHeader):
    for mb in (700, 900, 800):
        record(needs, CARD, header, mb)
    assert needs.find(CARD, header, "cpu", "1.0").device_mb == 900


def test_a_measurement_holds_for_its_shape_alone(needs: ModelNeeds, header: GgufHeader):
    record(needs, CARD, header, 700)
    others = [
        (replace(CARD, context=2048), "cpu", "1.0"),
        (replace(CARD, concurrency=4), "cpu", "1.0"),
        (replace(CARD, embeddings=True), "cpu", "1.0"),
        (replace(CARD, prompt_cache_mb=100), "cpu", "1.0"),
        (CARD, "GPU-2", "1.0"),
        (CARD, "cpu", "2.0"),
    ]
    assert {needs.find(order, header, *rest).source for order, *rest in others} == {"header"}


def test_the_file_is_bounded_and_drops_the_oldest(
    needs: ModelNeeds, header: GgufHeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model_needs, "MAX_ENTRIES", 3)
    clock = iter(range(100))
    monkeypatch.setattr(model_needs.time, "time", lambda: next(clock))
    for context in range(1, 6):
        record(needs, replace(CARD, context=context), header, context)
    stored = json.loads((tmp_path / "model_memory.json").read_text())
    assert sorted(each["measured"][0] for each in stored.values()) == [3, 4, 5]


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}"])
def test_a_damaged_file_costs_only_a_new_measurement(
    needs: ModelNeeds, header: GgufHeader, tmp_path: Path, text: str
):
    (tmp_path / "model_memory.json").write_text(text)
    assert needs.find(CARD, header, "cpu", "1.0").source == "header"
    record(needs, CARD, header, 700)
    assert needs.find(CARD, header, "cpu", "1.0").source == "measured"


def test_an_architecture_that_the_engine_does_not_know_is_an_error_with_the_fix(
    needs: ModelNeeds, header: GgufHeader, monkeypatch: pytest.MonkeyPatch
):
    reason = "unknown model architecture: 'llama9'"
    monkeypatch.setattr(model_needs, "dry_run", lambda order: DryRun(reason=reason))
    with pytest.raises(ModelFileError) as caught:
        needs.determine(CPU, header, "cpu", "1.0", can_dry_run=True)
    assert caught.value.code == "model.architecture"
    assert caught.value.reason == reason
    assert "xllamacpp" in (caught.value.fix or "")


def test_without_an_answer_of_the_dry_run_the_header_decides(
    needs: ModelNeeds, header: GgufHeader, monkeypatch: pytest.MonkeyPatch
):
    runs = []
    monkeypatch.setattr(
        model_needs,
        "dry_run",
        lambda order: runs.append(order) or DryRun(reason="the engine printed no sizes"),
    )
    for _ in range(3):
        assert needs.determine(CPU, header, "cpu", "1.0", can_dry_run=True) == compute_need(CPU, header)
    assert len(runs) == 1, "a load that waits for room must not start it again each time that it looks"


def test_a_gpu_model_that_was_measured_needs_no_dry_run(
    needs: ModelNeeds, header: GgufHeader, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model_needs, "dry_run", lambda order: pytest.fail("a dry run"))
    record(needs, CARD, header, 700)
    assert needs.determine(CARD, header, "cpu", "1.0", can_dry_run=True).source == "measured"
