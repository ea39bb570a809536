from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from gridq.errors import GridError, ModelFileError
from tests.fakes.hub_server import COMMIT, HubServer, Repository
from tests.gguf_files import write_gguf
from tests.waiting import wait_for
from workers.model_apis.model_catalogue import load_catalogue, verify_file
from workers.profiles.gpu.model_files import downloads, hub, pulling
from workers.profiles.gpu.model_files.file_use import hold_file, is_in_use
from workers.profiles.gpu.model_files.local_models import LocalModel, LocalModels
from workers.profiles.gpu.model_files.pulling import PullOptions, PullProgress, pull, read_progress
from workers.profiles.gpu.model_files.references import HubReference, parse_reference

TINY = parse_reference("hf:org/Tiny-GGUF")
Usage = namedtuple("Usage", "total used free")


def test_a_pulled_model_is_one_of_the_catalogue(hub_server: HubServer, home: Path, model_file: Path) -> None:
    seen: list[PullProgress] = []
    model = pull(TINY, home, PullOptions(families=("tiny",)), seen.append)
    assert (model.name, model.commit, model.architecture) == ("tiny", COMMIT, "llama")
    assert (model.context, model.trained_context) == (4096, 4096)  # no more than it was trained for
    assert [each.state for each in seen][:1] == ["resolving"]
    assert seen[-1].state == "done"
    assert {"downloading", "verifying"} <= {each.state for each in seen}
    [found] = [each for each in load_catalogue((), "", [model.make_table()]) if each.name == "tiny"]
    assert verify_file(found) == model.path
    assert found.families == ("tiny",)
    assert read_progress(home, "tiny") == seen[-1]


def test_a_file_that_is_no_model_is_removed_again(hub_server: HubServer, home: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        pull(parse_reference("hf:org/Tiny-GGUF:Q8_0"), home)
    assert LocalModels(home).read() == []
    assert not list((tmp_path / "hf").rglob("snapshots/*/*"))
    progress = read_progress(home, "tiny")
    assert progress is not None
    assert progress.state == "failed"
    assert progress.error


def test_the_disk_is_looked_at_before(
    hub_server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = Usage(0, 0, downloads.HEADROOM_BYTES + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(GridError) as caught:
        pull(TINY, home)
    assert caught.value.code == "model.disk_full"
    assert caught.value.fix
    assert not hub_server.list_downloads()
    assert not list((tmp_path / "hf").rglob("*.incomplete"))


def test_a_disk_that_becomes_full_leaves_nothing_behind(
    hub_server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import file_download

    def fill(url: str, file: object, **options: object) -> None:
        file.write(b"x" * 1000)  # type: ignore[attr-defined]
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(file_download, "http_get", fill)
    with pytest.raises(GridError) as caught:
        pull(TINY, home)
    assert caught.value.code == "model.disk_full"
    assert not list((tmp_path / "hf").rglob("blobs/*"))
    assert LocalModels(home).read() == []


@pytest.mark.usefixtures("small_chunks")
def test_two_pulls_at_once_do_not_count_on_the_same_room(
    hub_server: HubServer, home: Path, tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = model_file.stat().st_size
    second = write_gguf(tmp_path / "second.gguf", elements=262_144, context=2000)
    hub_server.repositories["org/Second"] = Repository({"Second-Q4_K_M.gguf": second})
    usage = Usage(0, 0, downloads.HEADROOM_BYTES + int(1.5 * size))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    first, results = start_stalled_pull(hub_server, home)
    wait_for(hub_server.list_downloads)
    with pytest.raises(GridError) as caught:
        pull(parse_reference("hf:org/Second"), home)
    assert caught.value.code == "model.disk_full"
    hub_server.gate.set()
    first.join(20)
    assert len(results) == 1
    assert pull(parse_reference("hf:org/Second"), home).size == second.stat().st_size


def test_limits_of_one_model_and_of_the_cache(hub_server: HubServer, home: Path, model_file: Path) -> None:
    size = model_file.stat().st_size
    for options in (PullOptions(max_bytes=size - 1), PullOptions(cache_bytes=size - 1)):
        with pytest.raises(GridError) as caught:
            pull(TINY, home, options)
        assert caught.value.code == "model.too_large"
    assert not hub_server.list_downloads()


def test_the_cache_drops_what_was_unused_longest_but_nothing_in_use(
    hub_server: HubServer, home: Path, tmp_path: Path, model_file: Path
) -> None:
    size = model_file.stat().st_size
    for number in range(4):
        file = write_gguf(tmp_path / f"m{number}.gguf", elements=262_144, context=1000 + number)
        hub_server.repositories[f"org/M{number}"] = Repository({f"M{number}-Q4_K_M.gguf": file})
    options = PullOptions(cache_bytes=int(3.5 * size))
    models = [pull(parse_reference(f"hf:org/M{number}"), home, options) for number in range(3)]
    LocalModels(home).note_use("m0")
    in_use = hold_file(models[1].path)
    assert is_in_use(models[1].path)
    assert not is_in_use(models[0].path)
    pull(parse_reference("hf:org/M3"), home, options)
    os.close(in_use)
    assert [each.name for each in LocalModels(home).read()] == ["m0", "m1", "m3"]
    assert not models[2].path.exists()
    assert models[0].path.exists()


def test_a_loaded_model_is_not_removed(hub_server: HubServer, home: Path) -> None:
    model = pull(TINY, home)
    in_use = hold_file(model.path)
    with pytest.raises(GridError) as caught:
        LocalModels(home).remove("tiny")
    assert caught.value.code == "model.in_use"
    assert model.path.exists()
    os.close(in_use)
    assert LocalModels(home).remove("tiny") == model.size
    assert not model.path.exists()


def test_what_was_in_the_cache_before_is_not_removed(
    hub_server: HubServer, home: Path, tmp_path: Path
) -> None:
    first = pull(TINY, tmp_path / "other")
    model = pull(TINY, home)
    assert model.path == first.path
    assert not model.is_owned
    assert LocalModels(home).remove("tiny") == 0
    assert model.path.exists()


def start_stalled_pull(hub_server: HubServer, home: Path) -> tuple[threading.Thread, list[LocalModel]]:
    """Start a pull that waits in the middle of its file for the hub's gate. Return its thread, and a list
    that gets its model.
    """
    hub_server.gate.clear()
    hub_server.gate_after = 131_072
    results: list[LocalModel] = []
    first = threading.Thread(target=lambda: results.append(pull(TINY, home)))
    first.start()
    return first, results


@pytest.mark.usefixtures("small_chunks")
def test_a_second_pull_follows_the_first(hub_server: HubServer, home: Path) -> None:
    first, results = start_stalled_pull(hub_server, home)
    seen: list[PullProgress] = []
    wait_for(lambda: (found := read_progress(home, "tiny")) and found.state == "downloading")

    def watch(progress: PullProgress) -> None:
        seen.append(progress)
        hub_server.gate.set()

    second = pull(TINY, home, watch=watch)
    first.join(20)
    assert results == [second]
    assert seen[0].state == "downloading"
    assert len(hub_server.list_downloads()) == 1


@pytest.mark.usefixtures("small_chunks")
def test_two_homes_that_pull_a_file_fetch_it_once(
    hub_server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "BUSY_SECONDS", 0.05)
    first, results = start_stalled_pull(hub_server, home)
    wait_for(hub_server.list_downloads)
    seen: list[PullProgress] = []

    def watch(progress: PullProgress) -> None:
        seen.append(progress)
        if progress.state == "waiting":
            hub_server.gate.set()

    second = pull(TINY, tmp_path / "other", watch=watch)
    first.join(20)
    assert second.path == results[0].path
    assert len(hub_server.list_downloads()) == 1
    assert "waiting" in [each.state for each in seen]
    assert seen[-1].state == "done"
    # the file belongs to the home that downloaded it
    assert LocalModels(tmp_path / "other").remove("tiny") == 0
    assert LocalModels(home).remove("tiny") == second.size
    assert not list((tmp_path / "hf").rglob("*.incomplete"))


def test_a_file_that_gets_its_name_while_another_pull_opens_it_is_taken(
    hub_server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hub.resolve(HubReference("org/Tiny-GGUF"))
    [file] = model.files
    blob = hub.locate_repository(model.repo) / "blobs" / str(file.sha256)
    partial = downloads.find_partial(blob)
    blob.parent.mkdir(parents=True)
    partial.write_bytes(hub_server.repositories[model.repo].files[file.path].read_bytes())  # type: ignore[union-attr]
    lock = fcntl.flock

    def complete(fd: int, operation: int) -> None:
        lock(fd, operation)
        if partial.exists() and not blob.exists():
            partial.replace(blob)

    monkeypatch.setattr(fcntl, "flock", complete)
    path, sha256 = hub.fetch_file(model, file, lambda done, total, state: None)
    assert (path.resolve(), sha256) == (blob, file.sha256)
    assert not partial.exists()
    assert not hub_server.list_downloads()


def test_a_file_of_this_machine_is_registered_where_it_is(home: Path, model_file: Path) -> None:
    model = pull(parse_reference(f"file:{model_file}"), home, PullOptions(context=512))
    assert (model.name, model.path, model.context) == ("source", model_file, 512)
    assert LocalModels(home).remove("source") == 0
    assert model_file.exists()
    with pytest.raises(GridError) as caught:
        pull(parse_reference("/no/such.gguf"), home)
    assert caught.value.code == "model.not_found"


def test_a_file_of_a_web_server_is_verified_by_the_digest_in_its_reference(
    hub_server: HubServer, home: Path
) -> None:
    digest = hub_server.repositories["org/Tiny-GGUF"].digests["Tiny-Q4_K_M.gguf"]
    url = f"{hub_server.url}/cdn/{digest}"
    with pytest.raises(GridError) as caught:
        pull(parse_reference(f"{url}#sha256={'0' * 64}"), home, PullOptions(name="web"))
    assert caught.value.code == "model.digest"
    assert not (home / "models").exists()
    model = pull(parse_reference(f"{url}#sha256={digest}"), home, PullOptions(name="web"))
    assert model.files[0].sha256 == digest
    assert home in model.path.parents
    assert LocalModels(home).remove("web") == model.size
    assert not (home / "models").exists()
    with pytest.raises(GridError) as caught:
        pull(parse_reference(f"{hub_server.url}/none.gguf"), home)
    assert caught.value.code == "model.not_found"


def test_the_limit_holds_for_a_file_whose_length_nobody_states(
    hub_server: HubServer, home: Path, model_file: Path
) -> None:
    hub_server.states_length = False
    digest = hub_server.repositories["org/Tiny-GGUF"].digests["Tiny-Q4_K_M.gguf"]
    reference = parse_reference(f"{hub_server.url}/cdn/{digest}")
    size = model_file.stat().st_size
    for options in (PullOptions(max_bytes=size - 1), PullOptions(cache_bytes=size - 1)):
        with pytest.raises(GridError) as caught:
            pull(reference, home, options)
        assert caught.value.code == "model.too_large"
        assert not (home / "models").exists()
    assert pull(reference, home, PullOptions(max_bytes=size)).size == size


@pytest.mark.parametrize("states_length", [True, False])
def test_a_part_that_is_no_part_of_the_servers_file_is_dropped(
    hub_server: HubServer, home: Path, model_file: Path, states_length: bool
) -> None:
    hub_server.states_length = states_length
    digest = hub_server.repositories["org/Tiny-GGUF"].digests["Tiny-Q4_K_M.gguf"]
    url = f"{hub_server.url}/cdn/{digest}"
    key = hashlib.sha256(f'{url} "{digest}"'.encode()).hexdigest()[:16]
    left = downloads.find_partial(home / "models" / key / digest)
    left.parent.mkdir(parents=True)
    left.write_bytes(model_file.read_bytes() + b"more")
    model = pull(parse_reference(url), home)
    assert model.path.parent == left.parent
    assert model.path.read_bytes() == model_file.read_bytes()


def test_a_name_that_is_taken_and_a_name_that_nobody_knows(
    hub_server: HubServer, home: Path, model_file: Path
) -> None:
    pull(parse_reference(f"file:{model_file}"), home, PullOptions(name="tiny"))
    for text, code in (("hf:org/Tiny-GGUF", "config.invalid"), ("nobody", "model.not_found")):
        with pytest.raises(GridError) as caught:
            pull(parse_reference(text), home)
        assert caught.value.code == code
        assert caught.value.fix


def test_an_interrupted_pull_is_shown_as_failed(hub_server: HubServer, home: Path) -> None:
    def interrupt(progress: PullProgress) -> None:
        if progress.state == "downloading":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(TINY, home, watch=interrupt)
    progress = read_progress(home, "tiny")
    assert progress is not None
    assert progress.state == "failed"
    assert pull(TINY, home).name == "tiny"


def test_a_time_is_only_estimated_once_it_means_something(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(pulling.time, "monotonic", lambda: clock[0])
    with pulling.PullFile(home, "m") as record:
        progress = pulling._Progress(PullProgress("m", "hf:o/r", total=1000), record, lambda _: None)
        report = progress.report(0)
        report(0, 1000, "downloading")
        clock[0] += 4
        report(400, 1000, "downloading")
        assert progress.current.eta is None
        clock[0] += 4
        report(500, 1000, "downloading")
        assert progress.current.eta == 8.0
        clock[0] += pulling.STALL_SECONDS + 1
        with pytest.raises(GridError) as caught:
            report(500, 1000, "downloading")
    assert caught.value.code == "model.unreachable"
    assert pulling.compute_deadline(20_000_000_000) == 600 + 300 * 20


@pytest.mark.usefixtures("small_chunks")
def test_what_a_pull_that_broke_off_left_can_be_removed(
    hub_server: HubServer, home: Path, tmp_path: Path, model_file: Path
) -> None:
    def interrupt(progress: PullProgress) -> None:
        if progress.done > 300_000:
            raise KeyboardInterrupt

    hub_server.pace = 0.05  # so that the progress is told
    with pytest.raises(KeyboardInterrupt):
        pull(TINY, home, watch=interrupt)
    [partial] = (tmp_path / "hf").rglob("*.incomplete")
    size = partial.stat().st_size
    assert 0 < size < model_file.stat().st_size
    assert pulling.forget_pull(home, "tiny") == size
    assert not partial.exists()
    assert read_progress(home, "tiny") is None
    with pytest.raises(GridError) as caught:
        pulling.forget_pull(home, "tiny")
    assert caught.value.code == "model.not_found"


@pytest.mark.usefixtures("small_chunks")
def test_what_another_pull_is_downloading_is_not_removed(
    hub_server: HubServer, home: Path, tmp_path: Path
) -> None:
    def interrupt(progress: PullProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(TINY, home, PullOptions(name="broken"), watch=interrupt)
    running, results = start_stalled_pull(hub_server, tmp_path / "other")
    wait_for(lambda: list((tmp_path / "hf").rglob("*.incomplete")))
    assert pulling.forget_pull(home, "broken") == 0
    hub_server.gate.set()
    running.join(20)
    assert len(results) == 1
    assert results[0].path.exists()


def test_a_failure_of_an_earlier_pull_is_not_that_of_the_one_that_runs(home: Path) -> None:
    with pulling.PullFile(home, "m") as earlier:
        pulling._Progress(PullProgress("m", "hf:o/r"), earlier, lambda _: None).fail(KeyboardInterrupt())
    results: list[str] = []
    with pulling.PullFile(home, "m") as running:
        assert running.is_ours

        def follow() -> None:
            with pulling.PullFile(home, "m") as other:
                try:
                    other.follow("hf:o/r", lambda _: None)
                except GridError as exc:
                    results.append(str(exc.reason))

        thread = threading.Thread(target=follow)
        thread.start()
        thread.join(1.0)
        assert results == []
        error = GridError("no", {"reason": "new"}).to_record()
        running.write(PullProgress("m", "hf:o/r", "failed", error=error))
    thread.join(20)
    assert results == ["new"]
