"""The hub's real client at a local server that answers as the hub does."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridq.errors import GridError, ModelPullError
from tests.fakes.http_server import Handler, LocalServer
from tests.fakes.hub_server import COMMIT, TOKEN, HubServer, Repository
from workers.profiles.gpu.model_files import hub
from workers.profiles.gpu.model_files.references import HubReference


def ignore(done: int, total: int, state: str) -> None:
    pass


def list_files(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.rglob("models--*/*/*") if path.is_file() and path.suffix != ".lock"
    )


def fetch(reference: HubReference) -> Path:
    model = hub.resolve(reference)
    return hub.fetch_file(model, model.files[0], ignore)[0]


def test_a_reference_is_pinned_to_a_commit_and_downloaded_into_the_hubs_cache(
    hub_server: HubServer, model_file: Path, tmp_path: Path
) -> None:
    model = hub.resolve(HubReference("org/Tiny-GGUF"))
    assert (model.commit, model.quantization, model.note) == (COMMIT, "Q4_K_M", "")
    path, sha256 = hub.fetch_file(model, model.files[0], ignore)
    assert sha256 == hashlib.sha256(model_file.read_bytes()).hexdigest() == model.files[0].sha256
    assert path.read_bytes() == model_file.read_bytes()
    cached = tmp_path / "hf/hub/models--org--Tiny-GGUF/snapshots" / COMMIT / "Tiny-Q4_K_M.gguf"
    assert path == cached
    assert cached.is_symlink()
    from huggingface_hub import scan_cache_dir

    [repo] = scan_cache_dir(tmp_path / "hf/hub").repos
    assert repo.repo_id == "org/Tiny-GGUF"
    assert repo.size_on_disk == model_file.stat().st_size
    downloads = len(hub_server.list_downloads())
    assert hub.fetch_file(model, model.files[0], ignore)[0] == path
    assert len(hub_server.list_downloads()) == downloads == 1


def test_a_search_lists_repositories_with_their_access(hub_server: HubServer) -> None:
    found = hub.search("gguf")
    assert [each.repo for each in found][:2] == ["org/Tiny-GGUF", "org/Gated-GGUF"]
    assert [each.gated for each in found][:2] == [False, True]
    assert hub.search("no such words") == []


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        (HubReference("org/None-GGUF"), "model.not_found"),
        (HubReference("org/Tiny-GGUF", None, "nope"), "model.not_found"),
        (HubReference("org/Private-GGUF"), "model.not_found"),
        (HubReference("org/Gated-GGUF"), "model.gated"),
    ],
)
def test_what_the_hub_refuses_is_said_with_a_fix(
    hub_server: HubServer, reference: HubReference, code: str
) -> None:
    with pytest.raises(GridError) as caught:
        fetch(reference)
    assert caught.value.code == code
    assert caught.value.fix
    assert (caught.value.path or "").startswith(f"hf:{reference.repo}")


def test_the_users_token_opens_what_is_gated_and_goes_to_the_hub_alone(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    path = fetch(HubReference("org/Gated-GGUF"))
    [download] = hub_server.list_downloads()
    assert "authorization" not in download
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    hub.remove_file(path)
    with pytest.raises(ModelPullError) as caught:
        fetch(HubReference("org/Gated-GGUF", None, "main"))
    assert caught.value.code == "model.gated"
    assert "hf_wrong" not in str(caught.value.to_record())


@pytest.mark.parametrize(("status", "code"), [(429, "model.unreachable"), (503, "model.unreachable")])
def test_a_hub_that_does_not_serve_is_said_with_its_status(
    hub_server: HubServer, status: int, code: str
) -> None:
    hub_server.status = status
    with pytest.raises(GridError) as caught:
        hub.resolve(HubReference("org/Tiny-GGUF"))
    assert caught.value.code == code
    assert str(status) in (caught.value.reason or "")
    assert caught.value.details.get("retry_after") == (7 if status == 429 else None)


@pytest.mark.parametrize("answer", [{}, [], {"id": "org/Tiny-GGUF", "siblings": [{}]}, b"<html>", b""])
def test_what_is_no_answer_of_a_hub_is_said(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    class Portal(Handler):
        def do_GET(self) -> None:
            self.answer(200, answer)

    with LocalServer(Portal) as portal:
        monkeypatch.setenv("HF_ENDPOINT", portal.url)
        with pytest.raises(GridError) as caught:
            hub.resolve(HubReference("org/Tiny-GGUF"))
        assert caught.value.code == "model.unreachable"
        assert caught.value.fix
        if answer not in ({}, []):  # both mean that nothing was found
            with pytest.raises(GridError) as caught:
                hub.search("tiny")
            assert caught.value.code == "model.unreachable"


def test_a_file_behind_endless_redirects_cannot_be_reached(hub_server: HubServer, tmp_path: Path) -> None:
    model = hub.resolve(HubReference("org/Tiny-GGUF"))
    hub_server.redirects_files = True
    with pytest.raises(GridError) as caught:
        hub.fetch_file(model, model.files[0], ignore)
    assert caught.value.code == "model.unreachable"
    assert list_files(tmp_path / "hf") == []


def test_a_hub_that_cannot_be_reached_and_offline_mode(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(GridError) as caught:
        hub.resolve(HubReference("org/Tiny-GGUF"))
    assert caught.value.code == "model.unreachable"
    program = (
        "from workers.profiles.gpu.model_files import hub\n"
        "from workers.profiles.gpu.model_files.references import HubReference\n"
        "try: hub.resolve(HubReference('org/Tiny-GGUF'))\n"
        "except Exception as exc: print(exc.code, exc.reason)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": hub_server.url},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout.split()[:2] == ["model.unreachable", "HF_HUB_OFFLINE"]


def test_a_damaged_download_leaves_nothing_behind(hub_server: HubServer, tmp_path: Path) -> None:
    hub_server.damaged = True
    model = hub.resolve(HubReference("org/Tiny-GGUF"))
    with pytest.raises(ModelPullError) as caught:
        hub.fetch_file(model, model.files[0], ignore)
    assert caught.value.code == "model.digest"
    assert list_files(tmp_path / "hf") == []
    assert hub.find_cached(model, model.files[0]) is None
    hub_server.damaged = False
    assert hub.fetch_file(model, model.files[0], ignore)[0].exists()


def test_a_file_that_was_damaged_in_the_cache_is_downloaded_again(hub_server: HubServer) -> None:
    model = hub.resolve(HubReference("org/Tiny-GGUF"))
    path, _ = hub.fetch_file(model, model.files[0], ignore)
    blob = path.resolve()
    blob.write_bytes(b"\0" + blob.read_bytes()[1:])
    again, sha256 = hub.fetch_file(model, model.files[0], ignore)
    assert again == path
    assert sha256 == model.files[0].sha256
    assert len(hub_server.list_downloads()) == 2


@pytest.mark.usefixtures("small_chunks")
def test_a_cut_connection_goes_on_where_it_broke(hub_server: HubServer) -> None:
    hub_server.cut_after, hub_server.cuts = 262_144, 1
    model = hub.resolve(HubReference("org/Tiny-GGUF"))
    _, sha256 = hub.fetch_file(model, model.files[0], ignore)
    assert sha256 == model.files[0].sha256
    first, second = hub_server.list_downloads()
    assert "range" not in first
    assert second["range"] == "bytes=262144-"


class Stopped(Exception):
    pass


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_an_interrupted_download_is_continued_by_the_next(
    hub_server: HubServer, model_file: Path, ignores_ranges: bool
) -> None:
    model = hub.resolve(HubReference("org/Tiny-GGUF"))

    def stop(done: int, total: int, state: str) -> None:
        if done >= total / 2:
            raise Stopped

    with pytest.raises(Stopped):
        hub.fetch_file(model, model.files[0], stop)
    hub_server.ignores_ranges = ignores_ranges
    path, sha256 = hub.fetch_file(model, model.files[0], ignore)
    assert sha256 == model.files[0].sha256
    assert path.read_bytes() == model_file.read_bytes()
    start = int(hub_server.list_downloads()[1]["range"].removeprefix("bytes=").removesuffix("-"))
    assert 0.3 * model_file.stat().st_size < start < model_file.stat().st_size


def test_a_split_model_is_fetched_whole_and_shared_content_is_removed_last(
    hub_server: HubServer, model_file: Path, tmp_path: Path
) -> None:
    names = [f"Big-Q4_K_M-0000{n}-of-00002.gguf" for n in (1, 2)]
    hub_server.repositories["org/Big"] = Repository(dict.fromkeys(names, model_file))
    model = hub.resolve(HubReference("org/Big"))
    assert [file.path for file in model.files] == names
    assert model.size == 2 * model_file.stat().st_size
    first, second = (hub.fetch_file(model, file, ignore)[0] for file in model.files)
    assert first.resolve() == second.resolve()
    hub.remove_file(first)
    assert second.exists()
    assert not first.is_symlink()
    hub.remove_file(second)
    assert list_files(tmp_path / "hf") == []


def test_a_file_that_is_too_large_for_http_goes_the_hubs_own_way(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_HTTP_BYTES", 1000)
    seen: list[str] = []
    model = hub.resolve(HubReference("org/Tiny-GGUF"))
    path, sha256 = hub.fetch_file(model, model.files[0], lambda done, total, state: seen.append(state))
    assert sha256 == model.files[0].sha256
    assert path.exists()
    assert {"downloading", "verifying"} == set(seen)
    hub.remove_file(path)
    hub_server.damaged = True
    with pytest.raises(ModelPullError) as caught:
        hub.fetch_file(model, model.files[0], ignore)
    assert caught.value.code == "model.digest"
    assert list_files(tmp_path / "hf") == []


def test_a_folder_that_cannot_be_written_is_one_error(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelPullError) as caught:
        fetch(HubReference("org/Tiny-GGUF"))
    assert caught.value.code == "model.pull"
    assert caught.value.reason


def test_an_etag_that_is_no_name_of_a_file_is_refused(hub_server: HubServer, tmp_path: Path) -> None:
    hub_server.repositories["org/Tiny-GGUF"].etag = "../../escape"
    with pytest.raises(ModelPullError) as caught:
        fetch(HubReference("org/Tiny-GGUF"))
    assert caught.value.code == "model.pull"
    assert not list(tmp_path.rglob("*escape*"))
