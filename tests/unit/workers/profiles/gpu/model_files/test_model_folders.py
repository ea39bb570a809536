"""The owner names the folders that models may be in: no other file is loaded, by link or by reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridq.errors import GridError
from tests.fakes.hub_server import HubServer
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.capability import GpuConfig, GpuSeat
from workers.profiles.gpu.model_files.local_models import LocalModels
from workers.profiles.gpu.model_files.model_folders import check_folders
from workers.profiles.gpu.model_files.pulling import PullOptions, pull
from workers.profiles.gpu.model_files.references import parse_reference
from workers.profiles.gpu.model_loader import ModelLoader, check_model


def find_code(action: object) -> str:
    with pytest.raises(GridError) as caught:
        action()  # type: ignore[operator]
    assert caught.value.fix
    assert caught.value.details["expected"]
    return caught.value.code


def test_a_file_outside_is_refused_by_the_probe_the_load_and_the_pull(
    tmp_path: Path, home: Path, model_file: Path
) -> None:
    inside = tmp_path / "models"
    inside.mkdir()
    folders = (str(inside),)
    model = Model(name="mine", file=str(model_file))
    seat = GpuSeat(device="cpu", backend="cpu", memory_mb=4000, engine="xllamacpp", model_folders=folders)
    options = PullOptions(folders=folders)
    reference = parse_reference(f"file:{model_file}")
    assert find_code(lambda: check_model(model, folders)) == "model.outside_folders"
    assert find_code(lambda: ModelLoader(seat, home).reserve(model)) == "model.outside_folders"
    assert find_code(lambda: pull(reference, home, options)) == "model.outside_folders"
    assert LocalModels(home).read() == []

    # a link from inside does not help, nor do dots, nor a part of a split model
    link = inside / "link.gguf"
    link.symlink_to(model_file)
    for path in (link, inside / ".." / model_file.name):
        linked = Model(name="mine", file=str(path))
        assert find_code(lambda linked=linked: check_model(linked, folders)) == "model.outside_folders"
    moved = model_file.rename(inside / "moved.gguf")
    split = Model(name="mine", file=str(moved), parts={str(tmp_path / "part.gguf"): "0" * 64})
    assert find_code(lambda: check_model(split, folders)) == "model.outside_folders"

    check_model(Model(name="mine", file=str(moved)), folders)
    assert pull(parse_reference(f"file:{moved}"), home, options).path == moved


def test_a_folder_is_stated_whole() -> None:
    GpuConfig(model_folders=("/srv/models", "~/models"))
    with pytest.raises(ValueError, match="model_folders"):
        GpuConfig(model_folders=("models",))


def test_downloads_and_packages_are_allowed_and_without_folders_everything(
    hub_server: HubServer, home: Path, tmp_path: Path, model_file: Path
) -> None:
    folders = (str(tmp_path / "models"),)
    digest = hub_server.repositories["org/Tiny-GGUF"].digests["Tiny-Q4_K_M.gguf"]
    for text in ("hf:org/Tiny-GGUF", f"{hub_server.url}/cdn/{digest}"):
        model = pull(parse_reference(text), home, PullOptions(folders=folders))
        check_folders(model.name, [model.path], folders, home)
    check_folders("mine", [model_file], (), home)
