"""A model that a request pulled: its seat finds the file without reading the machine's list each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu import runner
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.runner import Runner


def test_the_list_of_models_is_read_once_while_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    file, reads = tmp_path / "m.gguf", []

    def find_files(model: Model, home: Path) -> Model:
        reads.append(model.name)
        return model.model_copy(update={"file": str(file)}) if file.exists() else model

    monkeypatch.setattr(runner, "find_files", find_files)
    model = Model(name="m", file="hf:org/repo")
    seat = GpuSeat(device="cpu", backend="cpu", memory_mb=1000, models=(model,), idle_unload=0)
    card = GpuCapability(device="cpu", name="x", vendor="x", backend="cpu", memory_mb=1000)
    opened = Runner(card, seat)
    stage = StageCall(id="s", name="s", path="s", implementation="llm_chat", queue="llm:m", config={})

    def find() -> Model:
        return opened._find_files(model, stage, StageContext())

    assert find().is_reference
    file.touch()
    assert [find().file for _ in range(3)] == [str(file)] * 3
    assert len(reads) == 2
    file.unlink()
    assert find().is_reference, "a model that was removed is looked for again"
    opened.close()
