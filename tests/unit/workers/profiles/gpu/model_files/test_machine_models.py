"""What this machine can load, what it suggests, and which model `any` is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import settings
from gridq.errors import ConfigError
from gridq.protocol.models import ProbeReport
from tests.gguf_files import write_gguf
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuSeat
from workers.profiles.gpu.model_files.local_models import LocalModels
from workers.profiles.gpu.model_files.machine_models import find_reference, list_models, read_limit
from workers.profiles.gpu.model_files.pulling import PullOptions, pull
from workers.profiles.gpu.model_files.references import CatalogueReference, parse_reference
from workers.profiles.gpu.model_files.suggestions import SUGGESTIONS, suggest_pull

TABLE = {"name": "big", "file": "hf:org/Tiny-GGUF", "context": 1024, "families": ["fam"]}


@pytest.fixture
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRIDQ_HOME", str(home))
    monkeypatch.setenv("GRIDQ_SKIP_ENGINES", "1")
    settings.cache_clear()
    return home


def probe(**table: Any) -> ProbeReport:
    return GpuProfile().probe({"gpus": False, **table})


def seat_of(report: ProbeReport) -> GpuSeat:
    return GpuSeat.model_validate(report.found[0].config)


@pytest.mark.usefixtures("hub_server")
def test_a_name_of_the_seats_file_stands_for_its_reference(home: Path) -> None:
    reference, model = find_reference("BIG", [TABLE], home)
    assert str(reference) == "hf:org/Tiny-GGUF"
    assert model is not None
    assert model.families == ("fam",)
    assert find_reference("nobody", [TABLE], home) == (CatalogueReference("nobody"), None)
    pulled = pull(parse_reference("hf:org/Tiny-GGUF"), home, PullOptions(name="big"))
    [found] = [each for each in list_models([TABLE], home) if each.name == "big"]
    assert (found.file, found.context) == (str(pulled.path), 1024)


def test_a_wrong_reference_in_the_seats_file_names_its_table(own_home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(models=[{"name": "m", "file": "hf:nope"}])
    assert caught.value.path == "gpu.models.m.file"


def test_a_missing_model_is_offered_only_where_the_owner_allows_pulls(own_home: Path) -> None:
    report = probe(models=[TABLE])
    assert any("gridq models pull big" in why for why in report.missing)
    assert "big" not in {model.name for model in seat_of(report).models}
    seat = seat_of(probe(models=[TABLE], pulls=True, pull_limit_gb=3, cache_limit_gb=5))
    assert "big" in {model.name for model in seat.models}
    assert (seat.pull_bytes, seat.cache_bytes) == (3_000_000_000, 5_000_000_000)
    assert read_limit({"cache_limit_gb": 0.5}, "cache_limit_gb") == 500_000_000


def test_the_last_resort_is_any_only_where_no_other_model_of_the_seat_is(
    own_home: Path, model_file: Path
) -> None:
    profile = GpuProfile()
    capability = profile.Capability.model_validate(probe().found[0].capability)
    assert "llm:any" in profile.queues(capability)
    assert profile.last_resort_queues(capability) == ("llm:any",)
    pull(parse_reference(f"file:{model_file}"), own_home, PullOptions(name="mine"))
    [offer] = probe().found
    capability = profile.Capability.model_validate(offer.capability)
    models = GpuSeat.model_validate(offer.config).models
    assert {model.name: model.any for model in models} == {"mine": True, "smollm2-135m-instruct": False}
    assert "llm:any" in profile.queues(capability)
    assert profile.last_resort_queues(capability) == ()


def test_a_machine_without_a_model_is_told_the_command(own_home: Path, tmp_path: Path) -> None:
    assert any("gridq models pull hf:" in why for why in probe().missing)
    file = write_gguf(tmp_path / "mine.gguf")
    pull(parse_reference(f"file:{file}"), own_home, PullOptions(name="mine"))
    assert LocalModels(own_home).get("mine").path == file
    assert not any("gridq models pull hf:" in why for why in probe().missing)


def test_the_suggestion_fits_the_hardware() -> None:
    assert suggest_pull(100_000, is_cpu=False) == f"gridq models pull {SUGGESTIONS[0][1]}"
    assert "Qwen3-14B" in suggest_pull(15_872, is_cpu=False)  # a card with 16 GB, less the headroom
    assert "Qwen3-4B" in suggest_pull(100_000, is_cpu=True)
    assert suggest_pull(1000, is_cpu=False) == ""
    for _, what in SUGGESTIONS:
        parse_reference(what.split()[0])
