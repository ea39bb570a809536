"""One home folder pulls models from another over HTTP. The server, the client and the files are real."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from gridq.config.settings import Settings
from gridq.errors import GridError
from tests.fakes.http_server import Handler, LocalServer
from tests.fakes.hub_server import COMMIT, TOKEN, HubServer, Repository
from tests.gguf_files import write_gguf
from tests.waiting import wait_for
from workers.machine.mirror_registry import find_mirrors
from workers.profiles.gpu.capability import GpuConfig
from workers.profiles.gpu.model_files import downloads, hub, mirror_client, mirror_server
from workers.profiles.gpu.model_files.local_models import LocalModel, LocalModels
from workers.profiles.gpu.model_files.mirror_protocol import (
    PATH,
    Mirror,
    SharedModel,
    is_signed,
    make_secret,
    parse_mirrors,
    sign,
)
from workers.profiles.gpu.model_files.mirror_server import MirrorServer
from workers.profiles.gpu.model_files.pulling import PullOptions, PullProgress, pull
from workers.profiles.gpu.model_files.references import HubReference, parse_reference

TINY = parse_reference("hf:org/Tiny-GGUF")
OTHER = "other-1234"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The home folder of the machine that shares, with a hub cache of its own."""
    return tmp_path / "other"


def pull_elsewhere(
    monkeypatch: pytest.MonkeyPatch, home: Path, text: str = "hf:org/Tiny-GGUF", **options: Any
) -> LocalModel:
    """Pull a model to the machine that shares."""
    with monkeypatch.context() as patch:
        patch.setenv("HF_HOME", str(home / "hf"))
        return pull(parse_reference(text), home, PullOptions(**options))


Share = Callable[..., MirrorServer]


@pytest.fixture
def share(other: Path) -> Iterator[Share]:
    """Return a function that starts a server of the models of `other`, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(host: str = "127.0.0.1", **options: Any) -> MirrorServer:
            server = MirrorServer(other, (host, 0), **options)
            server.start()
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def mirror(hub_server: HubServer, other: Path, share: Share, monkeypatch: pytest.MonkeyPatch) -> MirrorServer:
    """A machine that has pulled the tiny model, and shares it. The hub has counted nothing yet."""
    pull_elsewhere(monkeypatch, other)
    hub_server.requests.clear()
    return share()


def find_address(mirror: MirrorServer) -> tuple[str, int]:
    host, port = mirror.url.removeprefix("http://").split(":")
    return host, int(port)


def pull_here(home: Path, *mirrors: Mirror, text: str = "hf:org/Tiny-GGUF") -> tuple[LocalModel, list[str]]:
    """Pull a model to this machine. Return it and the sources that gave it, in order."""
    seen: list[PullProgress] = []
    model = pull(parse_reference(text), home, PullOptions(), seen.append, lambda: list(mirrors))
    sources = [each.source for each in seen if each.source]
    return model, list(dict.fromkeys(sources))


def get_sha256(hub: HubServer) -> str:
    return hub.repositories["org/Tiny-GGUF"].digests["Tiny-Q4_K_M.gguf"]


def test_a_model_comes_from_the_other_machine_into_the_hubs_cache(
    mirror: MirrorServer, hub_server: HubServer, home: Path, tmp_path: Path, model_file: Path
) -> None:
    model, sources = pull_here(home, mirror.describe(OTHER))
    assert sources == [OTHER]
    assert hub_server.list_downloads() == []
    assert model.path.read_bytes() == model_file.read_bytes()
    assert (model.commit, model.quantization, model.access) == (COMMIT, "Q4_K_M", "open")
    assert model.is_owned
    from huggingface_hub import hf_hub_download, scan_cache_dir

    [repo] = scan_cache_dir(tmp_path / "hf/hub").repos
    assert [sorted(each.refs) for each in repo.revisions] == [["main"]]
    found = hf_hub_download(
        "org/Tiny-GGUF", "Tiny-Q4_K_M.gguf", cache_dir=tmp_path / "hf/hub", local_files_only=True
    )
    assert Path(found) == model.path
    assert LocalModels(home).remove("tiny") == model.size


def test_without_the_hub_the_other_machine_knows_what_a_reference_names(
    mirror: MirrorServer, hub_server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    seen: list[PullProgress] = []
    model = pull(TINY, home, PullOptions(), seen.append, lambda: [mirror.describe(OTHER)])
    assert (model.commit, model.quantization) == (COMMIT, "Q4_K_M")
    assert OTHER in seen[-1].note
    assert seen[-1].source == OTHER
    LocalModels(home).remove("tiny")
    for text in (
        "hf:org/Tiny-GGUF:q4_k_m",
        f"hf:org/Tiny-GGUF@{COMMIT}",
        "hf:org/Tiny-GGUF:Tiny-Q4_K_M.gguf",
    ):
        assert pull_here(home, mirror.describe(OTHER), text=text)[1] == [OTHER]
        LocalModels(home).remove("tiny")
    for text in ("hf:org/Tiny-GGUF:Q8_0", "hf:org/Tiny-GGUF@dev", "hf:org/Other"):
        with pytest.raises(GridError) as caught:
            pull_here(home, mirror.describe(OTHER), text=text)
        assert caught.value.code == "model.unreachable"


def test_a_web_servers_file_is_found_by_its_digest(
    hub_server: HubServer, other: Path, share: Share, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = get_sha256(hub_server)
    pull_elsewhere(monkeypatch, other, f"{hub_server.url}/cdn/{sha256}?token=secret", name="web")
    closed = share()
    assert closed.describe(OTHER).models == ()
    assert ask(closed, sha256).status_code == 404
    server = share(gated=True)
    hub_server.requests.clear()
    offer = server.describe(OTHER)
    assert "token" not in offer.model_dump_json()
    text = f"{hub_server.url}/cdn/{sha256}#sha256={sha256}"
    assert pull_here(home, offer, text=text)[1] == [OTHER]
    assert hub_server.list_downloads() == []
    LocalModels(home).remove(sha256)
    gone = f"http://127.0.0.1:9/model.gguf#sha256={sha256}"
    assert pull_here(home, offer, text=gone)[1] == [OTHER]
    pull_elsewhere(monkeypatch, other, f"{hub_server.url}/cdn/{sha256}", name="web")
    assert len(closed.describe(OTHER).models) == 1


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("first", ["hub", "mirror"])
def test_half_a_file_is_continued_by_the_other_source(
    mirror: MirrorServer, hub_server: HubServer, home: Path, model_file: Path, first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def stop(progress: PullProgress) -> None:
        if progress.done > 300_000:
            raise KeyboardInterrupt

    monkeypatch.setattr(mirror_client, "REPORT_BYTES", 65_536)
    monkeypatch.setattr(mirror_server, "CHUNK_BYTES", 65_536)
    monkeypatch.setattr("workers.profiles.gpu.model_files.pulling.WRITE_SECONDS", 0.0)
    mirrors = [mirror.describe(OTHER)]
    with pytest.raises(KeyboardInterrupt):
        pull(TINY, home, PullOptions(), stop, lambda: mirrors if first == "mirror" else [])
    model, sources = pull_here(home, *(mirrors if first == "hub" else []))
    assert model.path.read_bytes() == model_file.read_bytes()
    ranges = [int(each.get("range", "bytes=0-")[6:-1]) for each in hub_server.list_downloads()]
    if first == "hub":
        assert sources == [OTHER]
        assert ranges == [0]
    else:
        assert sources == ["127.0.0.1"]
        assert ranges[0] > 100_000


class BadMirror(LocalServer):
    """A mirror that answers every request in one bad way, `begin` bytes of the file first."""

    def __init__(self, data: bytes, manner: str) -> None:
        super().__init__(self._make_handler())
        self.data, self.manner = data, manner
        self.begin = len(data) // 2
        self.pause = 0.05
        self.requests: list[str] = []
        self.stopping = threading.Event()

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        super().__exit__(*exc)

    def describe(self, sha256: str, machine: str = "bad-0001") -> Mirror:
        file = {"path": "Tiny-Q4_K_M.gguf", "size": len(self.data), "sha256": sha256}
        model = SharedModel.model_validate(
            {"reference": "hf:org/Tiny-GGUF", "commit": COMMIT, "quantization": "Q4_K_M", "files": [file]}
        )
        return Mirror(machine=machine, url=self.url, secret=make_secret(), models=(model,))

    def _make_handler(self) -> type[Handler]:
        bad = self

        class BadHandler(Handler):
            def do_GET(self) -> None:
                bad.requests.append(self.headers.get("range", ""))
                manner, data = bad.manner, bad.data
                start = int(self.headers.get("range", "bytes=0-")[6:-1])
                self.close_connection = True
                if manner == "redirects":
                    self.answer(302, b"", {"Location": "http://127.0.0.1:9/"})
                    return
                if manner == "is full":
                    self.answer(503, b"", {"Retry-After": "1"})
                    return
                if manner == "refuses":
                    self.answer(403, b"")
                    return
                if manner == "sends another part":
                    self.answer(
                        206 if start else 200, data[start + 1 :] + b"x", {"Content-Range": "bytes 1-2/3"}
                    )
                    return
                if manner == "goes on with interim answers":
                    while not bad.stopping.is_set():
                        self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                if manner == "goes on with its head":
                    while not bad.stopping.wait(0.2):
                        self.send_header("X-More", "1")
                        self.flush_headers()
                    return
                if manner == "goes on with a chunk's head":
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.write(b"1;")
                    while not bad.stopping.wait(0.2):
                        self.wfile.write(b"x")
                    return
                if manner != "never ends":
                    self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                if manner == "lies":
                    self.wfile.write(bytes(len(data) - start))
                elif manner == "vanishes":
                    self.wfile.write(data[start : start + bad.begin])
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                elif manner == "hangs":
                    self.wfile.write(data[start : start + bad.begin])
                    bad.stopping.wait(30)
                elif manner == "is slow":
                    while not bad.stopping.wait(bad.pause) and start < len(data):
                        self.wfile.write(data[start : start + 500])
                        start += 500
                else:
                    while not bad.stopping.is_set():
                        self.wfile.write(bytes(65_536))

        return BadHandler


MANNERS = (
    "lies", "vanishes", "hangs", "is slow", "redirects", "is full", "refuses", "never ends",
    "sends another part", "goes on with interim answers", "goes on with its head",
    "goes on with a chunk's head",
)  # fmt: skip


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_client, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(mirror_client, "READ_SECONDS", 1.0)
    monkeypatch.setattr(mirror_client, "PACE_SECONDS", 0.5)
    monkeypatch.setattr(downloads, "BUSY_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("manner", MANNERS)
def test_a_bad_mirror_gives_way_to_the_hub(
    hub_server: HubServer, home: Path, model_file: Path, manner: str, tmp_path: Path
) -> None:
    with BadMirror(model_file.read_bytes(), manner) as bad:
        model, sources = pull_here(home, bad.describe(get_sha256(hub_server)))
        assert len(bad.requests) == 1
    assert sources[-1] == "127.0.0.1"
    assert model.path.read_bytes() == model_file.read_bytes()
    begun = [each.get("range") for each in hub_server.list_downloads()]
    # what came is kept, but for what turned out to be wrong
    keeps = manner in ("vanishes", "hangs", "is slow")
    assert (begun[0] is not None) == keeps
    assert not list((tmp_path / "hf").rglob("*.incomplete"))


@pytest.mark.usefixtures("impatient")
def test_a_bad_mirror_gives_way_to_a_good_one(
    mirror: MirrorServer, hub_server: HubServer, home: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(mirror_client._RANDOM, "shuffle", lambda found: None)
    for manner in MANNERS:
        with BadMirror(model_file.read_bytes(), manner) as bad:
            model, sources = pull_here(home, bad.describe(get_sha256(hub_server)), mirror.describe(OTHER))
        assert sources[-1] == OTHER, manner
        assert model.path.read_bytes() == model_file.read_bytes()
        LocalModels(home).remove("tiny")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("manner", "code"),
    [("lies", "model.digest"), ("redirects", "model.unreachable"), ("refuses", "model.unreachable")],
)
def test_without_hub_and_good_mirror_the_error_says_why(
    hub_server: HubServer, home: Path, model_file: Path, manner: str, code: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with BadMirror(model_file.read_bytes(), manner) as bad, pytest.raises(GridError) as caught:
        pull_here(home, bad.describe(get_sha256(hub_server)))
    assert caught.value.code == code
    assert caught.value.fix or caught.value.remedy
    assert LocalModels(home).read() == []
    assert not list((tmp_path / "hf").rglob("blobs/*"))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("manner", ["is full", "is slow"])
def test_without_the_hub_a_mirror_that_is_full_or_slow_is_waited_for(
    hub_server: HubServer, home: Path, model_file: Path, manner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with BadMirror(model_file.read_bytes(), manner) as bad:
        offer, results = bad.describe(get_sha256(hub_server)), []
        thread = threading.Thread(target=lambda: results.append(pull_here(home, offer)))
        thread.start()
        wait_for(lambda: len(bad.requests) >= 2)
        bad.pause, bad.begin = 0.0, len(bad.data)
        if manner == "is full":
            bad.manner = "vanishes"  # after it has sent all
        thread.join(30)
    [(model, sources)] = results
    assert sources == ["bad-0001"]
    assert model.path.read_bytes() == model_file.read_bytes()


def test_a_mirror_that_gave_a_wrong_half_is_not_asked_again(
    hub_server: HubServer, home: Path, model_file: Path
) -> None:
    data = bytes(len(model_file.read_bytes()))
    with BadMirror(data, "vanishes") as bad:
        model, sources = pull_here(home, bad.describe(get_sha256(hub_server)))
        assert len(bad.requests) == 1
    assert sources[0] == "bad-0001"
    assert model.path.read_bytes() == model_file.read_bytes()
    begun = [each.get("range") for each in hub_server.list_downloads()]
    assert begun[0] is not None
    assert begun[1:] == [None]


@pytest.mark.parametrize("begin", [1, 100_000])
def test_without_the_hub_those_who_gave_a_wrong_file_together_are_asked_alone(
    mirror: MirrorServer, hub_server: HubServer, home: Path, model_file: Path, begin: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(mirror_client._RANDOM, "shuffle", lambda found: None)
    size = len(model_file.read_bytes())
    with BadMirror(bytes(size), "vanishes") as bad, BadMirror(bytes(size), "vanishes") as worse:
        bad.begin = begin
        offers = [each.describe(get_sha256(hub_server), name) for each, name in ((bad, "a"), (worse, "b"))]
        model, sources = pull_here(home, *offers, mirror.describe(OTHER))
    assert sources[-1] == OTHER
    assert model.path.read_bytes() == model_file.read_bytes()


def test_a_wrong_half_of_an_earlier_pull_is_fetched_again(
    mirror: MirrorServer, hub_server: HubServer, home: Path, model_file: Path, tmp_path: Path
) -> None:
    blob = tmp_path / "hf/hub/models--org--Tiny-GGUF/blobs" / get_sha256(hub_server)
    blob.parent.mkdir(parents=True)
    downloads.find_partial(blob).write_bytes(bytes(1000))
    model, sources = pull_here(home, mirror.describe(OTHER))
    assert sources == [OTHER]
    assert model.path.read_bytes() == model_file.read_bytes()


def test_a_machine_does_not_ask_itself(mirror: MirrorServer, hub_server: HubServer, home: Path) -> None:
    from gridq.config.machine_id import get_machine_id

    _, sources = pull_here(home, mirror.describe(get_machine_id(home)))
    assert sources == ["127.0.0.1"]


def test_two_pulls_of_a_file_fetch_it_once(
    mirror: MirrorServer, hub_server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    answer = mirror._server.answer

    def count(request: Any) -> None:
        given.append(request.path)
        time.sleep(0.5)
        answer(request)

    mirror._server.answer = count
    results: list[LocalModel] = []
    threads = [
        threading.Thread(target=lambda: results.append(pull_here(home, mirror.describe(OTHER))[0]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 3
    assert len(given) == 1


def test_a_split_model_comes_whole_without_the_hub(
    hub_server: HubServer,
    other: Path,
    share: Share,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"Big-Q4_K_M-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    files = {
        name: write_gguf(
            tmp_path / name,
            architecture="llama" if at == 0 else None,
            elements=1000 + at,
            **{"split.no": at, "split.count": 3},
        )
        for at, name in enumerate(names)
    }
    hub_server.repositories["org/Big"] = Repository(dict(files))
    pull_elsewhere(monkeypatch, other, "hf:org/Big")
    server = share()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    model, sources = pull_here(home, server.describe(OTHER), text="hf:org/Big")
    assert sources == [OTHER]
    assert [Path(file.path).name for file in model.files] == names
    assert [Path(file.path).read_bytes() for file in model.files] == [f.read_bytes() for f in files.values()]


def test_a_mirror_that_is_gone_is_asked_for_the_first_file_only(
    hub_server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    names = [f"Big-Q4_K_M-{number:05d}-of-00002.gguf" for number in (1, 2)]
    parts = {name: write_gguf(tmp_path / name, elements=1000 + at) for at, name in enumerate(names)}
    big = hub_server.repositories["org/Big"] = Repository(dict(parts))
    files = [
        {"path": name, "size": parts[name].stat().st_size, "sha256": big.digests[name]} for name in names
    ]
    shared = SharedModel.model_validate({"files": files})
    offer = Mirror(machine=OTHER, url="http://127.0.0.1:9", secret=make_secret(), models=(shared,))
    fetch = mirror_client.MirrorSource.fetch

    def count(source: mirror_client.MirrorSource, *arguments: Any, **options: Any) -> None:
        asked.append(source.name)
        fetch(source, *arguments, **options)

    monkeypatch.setattr(mirror_client.MirrorSource, "fetch", count)
    assert pull_here(home, offer, text="hf:org/Big")[1] == ["127.0.0.1"]
    assert asked == [OTHER]


def test_a_hub_that_stops_after_the_list_of_files_is_replaced_by_the_mirror(
    mirror: MirrorServer, hub_server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = hub.resolve

    def resolve_last(reference: HubReference) -> hub.HubModel:
        found = resolve(reference)
        hub_server.status = 503
        return found

    monkeypatch.setattr(hub, "resolve", resolve_last)
    assert pull_here(home, mirror.describe(OTHER))[1] == [OTHER]


def test_the_disk_is_looked_at_before_a_mirror_is_asked(
    mirror: MirrorServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[str] = []
    monkeypatch.setattr(mirror._server, "answer", lambda request: answered.append(request.path))
    usage = namedtuple("Usage", "total used free")(0, 0, downloads.HEADROOM_BYTES + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(GridError) as caught:
        pull_here(home, mirror.describe(OTHER))
    assert caught.value.code == "model.disk_full"
    assert answered == []
    assert not list((tmp_path / "hf").rglob("*.incomplete"))


def test_a_disk_that_becomes_full_ends_the_pull_and_leaves_nothing(
    mirror: MirrorServer, hub_server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(answer: object, file: Any, *arguments: object, **options: object) -> None:
        file.write(b"x" * 1000)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(mirror_client, "_copy", fill)
    with pytest.raises(GridError) as caught:
        pull_here(home, mirror.describe(OTHER))
    assert caught.value.code == "model.disk_full"
    assert hub_server.list_downloads() == []  # it would not fit either
    assert not list((tmp_path / "hf").rglob("blobs/*"))


def test_the_limit_of_the_cache_holds_for_what_mirrors_give(
    mirror: MirrorServer, home: Path, model_file: Path
) -> None:
    options = PullOptions(cache_bytes=model_file.stat().st_size - 1)
    with pytest.raises(GridError) as caught:
        pull(TINY, home, options, find_mirrors=lambda: [mirror.describe(OTHER)])
    assert caught.value.code == "model.too_large"


def test_a_grid_that_cannot_be_reached_has_no_mirrors(
    hub_server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = partial(find_mirrors, Settings(broker_url=SecretStr("redis://127.0.0.1:9/0")))
    assert find() == []
    assert pull(TINY, home, find_mirrors=find).name == "tiny"


# who may fetch, and what


def ask(mirror: MirrorServer, sha256: str, secret: str | None = None, **headers: str) -> httpx.Response:
    offer = mirror.describe(OTHER)
    signed = sign(offer.secret if secret is None else secret, sha256)
    return httpx.get(
        f"{mirror.url}{PATH}{sha256}", headers={"authorization": signed, **headers}, trust_env=False
    )


def test_only_signed_requests_get_files_and_strangers_learn_nothing(
    mirror: MirrorServer, hub_server: HubServer, model_file: Path
) -> None:
    sha256, secret = get_sha256(hub_server), mirror.describe(OTHER).secret
    assert ask(mirror, sha256).content == model_file.read_bytes()
    assert ask(mirror, "0" * 64).status_code == 404
    now = time.time()
    for digest in (sha256, "0" * 64):
        url = f"{mirror.url}{PATH}{digest}"
        answers = [
            httpx.get(url),
            httpx.get(url, headers={"authorization": sign(make_secret(), digest)}),
            httpx.get(url, headers={"authorization": sign(secret, "1" * 64)}),
            httpx.get(url, headers={"authorization": sign(secret, digest, now - 300)}),
            httpx.get(url, headers={"authorization": sign(secret, digest, now + 300)}),
            httpx.get(url, headers={"authorization": "gridq 99999999999999.zz"}),
        ]
        assert [(each.status_code, each.content) for each in answers] == [(403, b"")] * len(answers)
    assert is_signed(secret, sha256, sign(secret, sha256, now + 50), now)
    assert secret not in repr(mirror.describe(OTHER))


def test_a_secret_is_valid_until_it_has_been_replaced_twice(
    mirror: MirrorServer, hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a machine that has left the grid gets nothing more in the end, and a pull that has begun goes on."""
    sha256 = get_sha256(hub_server)
    first = mirror.describe(OTHER).secret
    assert mirror.describe(OTHER).secret == first
    monkeypatch.setattr(mirror_server, "SECRET_SECONDS", 0)
    second = mirror.describe(OTHER).secret
    monkeypatch.setattr(mirror_server, "SECRET_SECONDS", 1e9)
    assert second != first
    assert [ask(mirror, sha256, each).status_code for each in (first, second)] == [200, 200]
    monkeypatch.setattr(mirror_server, "SECRET_SECONDS", 0)
    mirror.describe(OTHER)
    monkeypatch.setattr(mirror_server, "SECRET_SECONDS", 1e9)
    assert [ask(mirror, sha256, each).status_code for each in (first, second)] == [403, 200]


def test_a_thousand_connections_leave_the_mirror_as_it_was(
    mirror: MirrorServer, hub_server: HubServer
) -> None:
    before, sockets = threading.active_count(), []
    for _ in range(1_000):
        sockets.append(socket.socket())
        sockets[-1].setblocking(False)
        sockets[-1].connect_ex(find_address(mirror))
    time.sleep(0.5)
    assert threading.active_count() - before <= mirror_server.MAX_CONNECTIONS
    for each in sockets:
        each.close()
    wait_for(lambda: not mirror._server._deadlines)
    assert ask(mirror, get_sha256(hub_server)).status_code == 200


@pytest.mark.parametrize(
    "more",
    ["Content-Length: 5\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "\r\n"],
)
def test_one_connection_gets_one_answer(
    mirror: MirrorServer, hub_server: HubServer, model_file: Path, more: str
) -> None:
    sha256 = get_sha256(hub_server)
    signed = sign(mirror.describe(OTHER).secret, sha256)
    head = f"GET {PATH}{sha256} HTTP/1.1\r\nAuthorization: {signed}\r\n"
    with socket.create_connection(find_address(mirror), timeout=10) as connection:
        connection.sendall(f"{head}{more}{head}\r\n".encode())
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # of what it did not read
            while part := connection.recv(65_536):
                answer += part
    first, _, body = answer.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert model_file.read_bytes().startswith(body)


@pytest.mark.parametrize(
    "path",
    [
        "/", "/models", "/models/", "/models/../models.json", "/models.json", "/etc/passwd",
        "/models/%2e%2e/machine", "//etc/passwd", "/models/" + "A" * 64, "/models/" + "0" * 64 + "/x",
        "/models/" + "0" * 63, "http://127.0.0.1/etc/passwd",
    ],
)  # fmt: skip
def test_no_path_is_taken_from_a_request(mirror: MirrorServer, path: str) -> None:
    header = sign(mirror.describe(OTHER).secret, "")
    with socket.create_connection(find_address(mirror), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.split(b" ")[1] == b"403"
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(mirror: MirrorServer, hub_server: HubServer, method: str) -> None:
    sha256 = get_sha256(hub_server)
    headers = {"authorization": sign(mirror.describe(OTHER).secret, sha256)}
    answer = httpx.request(method, f"{mirror.url}{PATH}{sha256}", headers=headers)
    assert answer.status_code == 501
    assert answer.content == b""


def test_ranges(mirror: MirrorServer, hub_server: HubServer, model_file: Path) -> None:
    sha256, data = get_sha256(hub_server), model_file.read_bytes()
    part = ask(mirror, sha256, range="bytes=1000-")
    assert (part.status_code, part.content) == (206, data[1000:])
    assert part.headers["content-range"] == f"bytes 1000-{len(data) - 1}/{len(data)}"
    assert ask(mirror, sha256, range=f"bytes={len(data)}-").status_code == 416
    for odd in ("bytes=-5", "bytes=0-5", "bytes=1-2,4-5", "lines=1-", "bytes=x-"):
        assert ask(mirror, sha256, range=odd).content == data


def test_a_file_that_changed_or_was_swapped_is_not_given(
    mirror: MirrorServer, hub_server: HubServer, other: Path, tmp_path: Path
) -> None:
    sha256 = get_sha256(hub_server)
    [model] = LocalModels(other).read()
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(model.size))
    model.path.unlink()
    model.path.symlink_to(secret)
    assert ask(mirror, sha256).status_code == 404
    assert mirror.describe(OTHER).models == ()


def test_odd_names_and_odd_entries_do_not_keep_the_others_from_being_shared(
    mirror: MirrorServer, hub_server: HubServer, other: Path, home: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    odd = write_gguf(tmp_path / "odd.gguf", elements=77)
    hub_server.repositories["org/Odd"] = Repository({"a b/Ödd (1)+x-Q4_K_M.gguf": odd})
    model = pull_elsewhere(monkeypatch, other, "hf:org/Odd")
    LocalModels(other).add(model.model_copy(update={"name": "strange", "reference": "?? what"}))
    LocalModels(other).add(model.model_copy(update={"name": "later", "pulled_at": 1e300}))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found, sources = pull_here(home, mirror.describe(OTHER), text="hf:org/Odd")
    assert sources == [OTHER]
    assert str(found.path).endswith("/a b/Ödd (1)+x-Q4_K_M.gguf")

    # a pipe in place of a file holds nobody up
    blob = model.path.resolve()
    blob.unlink()
    os.mkfifo(blob)
    assert ask(mirror, model.files[0].sha256).status_code == 404
    assert len(mirror.describe(OTHER).models) == 1


def test_an_address_may_be_ipv6(hub_server: HubServer, share: Share) -> None:
    server = share("::1")
    assert server.url.startswith("http://[::1]:")
    assert ask(server, "0" * 64).status_code == 404


def test_files_of_the_owner_are_not_shared(
    mirror: MirrorServer, hub_server: HubServer, other: Path, tmp_path: Path
) -> None:
    own = write_gguf(tmp_path / "own.gguf", elements=64)
    model = pull(parse_reference(f"file:{own}"), other)
    assert ask(mirror, model.files[0].sha256).status_code == 404
    assert [each.reference for each in mirror.describe(OTHER).models] == ["hf:org/Tiny-GGUF"]


@pytest.mark.parametrize("repo", ["org/Gated-GGUF", "org/Private-GGUF"])
def test_gated_and_private_models_are_shared_only_if_the_owner_says_so(
    hub_server: HubServer, other: Path, share: Share, home: Path, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(other.with_suffix(".gguf"), elements=1000, context=77)
    hub_server.repositories[repo] = Repository(
        {"M-Q4_K_M.gguf": file}, gated="Gated" in repo, private="Private" in repo
    )
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", TOKEN)
        model = pull_elsewhere(monkeypatch, other, f"hf:{repo}")
    assert model.access == ("gated" if "Gated" in repo else "private")
    closed, shared = share(), share(gated=True)
    assert ask(closed, model.files[0].sha256).status_code == 404
    assert closed.describe(OTHER).models == ()
    with pytest.raises(GridError) as caught:
        pull_here(home, closed.describe(OTHER), text=f"hf:{repo}")
    assert caught.value.code in ("model.gated", "model.not_found")
    assert pull_here(home, shared.describe(OTHER), text=f"hf:{repo}")[1] == [OTHER]
    [here] = LocalModels(home).read()
    assert here.access == model.access  # so this machine does not share it on its own


def test_a_model_that_is_removed_while_it_is_given_still_arrives(
    hub_server: HubServer,
    other: Path,
    share: Share,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_file: Path,
) -> None:
    write_gguf(model_file, elements=4_194_304)
    hub_server.repositories["org/Tiny-GGUF"] = Repository({"Tiny-Q4_K_M.gguf": model_file})
    size = pull_elsewhere(monkeypatch, other).size
    hub_server.requests.clear()
    server = share(bytes_per_second=12_000_000)
    removed: list[int] = []

    def remove(progress: PullProgress) -> None:
        if progress.done and not removed:
            removed.append(LocalModels(other).remove("tiny"))

    offer = server.describe(OTHER)
    pull(TINY, home, PullOptions(), remove, lambda: [offer])
    assert removed == [size]
    assert hub_server.list_downloads() == []
    assert server.describe(OTHER).models == ()
    assert ask(server, get_sha256(hub_server)).status_code == 404


# bounds


def test_transfers_and_connections_are_bounded(
    mirror: MirrorServer, hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(mirror_server.MAX_TRANSFERS):
        mirror._transfers.acquire()
    refused = ask(mirror, get_sha256(hub_server))
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    for _ in range(mirror_server.MAX_TRANSFERS):
        mirror._transfers.release()
    idle = [socket.create_connection(find_address(mirror)) for _ in range(mirror_server.MAX_CONNECTIONS)]
    wait_for(lambda: len(mirror._server._deadlines) == mirror_server.MAX_CONNECTIONS)
    with pytest.raises(httpx.HTTPError):
        ask(mirror, get_sha256(hub_server))
    for connection in idle:
        connection.close()
    wait_for(lambda: not mirror._server._deadlines)
    assert ask(mirror, get_sha256(hub_server)).status_code == 200


def test_a_client_that_sends_its_request_slowly_is_cut(
    mirror: MirrorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_server, "HEAD_SECONDS", 0.5)
    began = time.monotonic()
    with socket.create_connection(find_address(mirror), timeout=20) as connection:

        def is_cut() -> bool:
            try:
                connection.sendall(b"X")
            except OSError:
                return True
            return False

        wait_for(is_cut, 15)
    assert time.monotonic() - began < 10
    wait_for(lambda: not mirror._server._deadlines)


def test_the_owners_limit_of_speed_holds_for_all_transfers_together(
    hub_server: HubServer, other: Path, share: Share, monkeypatch: pytest.MonkeyPatch, model_file: Path
) -> None:
    write_gguf(model_file, elements=1_048_576)
    hub_server.repositories["org/Tiny-GGUF"] = Repository({"Tiny-Q4_K_M.gguf": model_file})
    size = pull_elsewhere(monkeypatch, other).size
    server = share(bytes_per_second=size)
    began = time.monotonic()
    threads = [threading.Thread(target=ask, args=(server, get_sha256(hub_server))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # three files at one a second, less the last piece, which needs no wait after it
    assert time.monotonic() - began > 2.2


def test_an_address_that_cannot_be_used_is_one_error(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for address in (("127.0.0.1", taken.getsockname()[1]), ("203.0.113.1", 8790)):
            with pytest.raises(GridError) as caught:
                MirrorServer(home, address)
            assert caught.value.code == "config.invalid"
            assert caught.value.path == "gpu.share_models"
            assert caught.value.fix


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:8790", "[::]:8790", "[::0]:8790", "0:8790", "192.168.1.5", "a b:1", "host:99999", ":8790"],
)
def test_an_address_must_be_one_that_others_reach(text: str) -> None:
    with pytest.raises(ValueError, match="share_models"):
        GpuConfig(share_models=text)


def test_what_a_machine_advertises_is_checked() -> None:
    good = Mirror(machine="m", url="http://10.0.0.5:8790", secret=make_secret())
    texts = {"good": good.model_dump_json(), "old": "{}", "broken": "no JSON"}
    for field, value in [
        ("secret", "short"), ("secret", "ä" * 64), *(("url", url) for url in (
            "https://elsewhere.example", "http://elsewhere.example:80/x", "http://no.port", "http://no:0",
            "http://no:65536", "http://user:word@host:80", "http://host:80?a=", "http://host:80#a",
            "http://two words:80", "http://a..b:80", "http://\u2028:80", f"http://{'a' * 64}:80",
            "http://[::1%25eth0]:80",
        )),
    ]:  # fmt: skip
        texts[f"{field} {value}"] = good.model_copy(update={field: value}).model_dump_json(warnings=False)
    file = {"path": "x", "size": 1, "sha256": "0" * 64}
    for odd in (
        {"files": []}, {"files": [{**file, "size": -1}]}, {"files": [{**file, "size": 10**400}]},
        {"files": [file], "pulled_at": 1e300}, {"files": [file], "pulled_at": float("nan")},
        {"files": [file], "pulled_at": -1.0}, {"files": [file], "quantization": "\x1b[31m"},
    ):  # fmt: skip
        texts[f"model {odd}"] = json.dumps({**good.model_dump(), "models": [odd]})
    for path in ("../x", "/etc/passwd", "a/../../x", "a//b", "a\\b", ""):
        models = [{"files": [{"path": path, "size": 1, "sha256": "0" * 64}]}]
        texts[f"path {path}"] = json.dumps({**good.model_dump(), "models": models})
    assert [each.machine for each in parse_mirrors(texts)] == ["good"]


def test_a_reference_that_was_pulled_answers_what_names_the_same_files() -> None:
    files = ({"path": "M-Q8_0.gguf", "size": 1, "sha256": "0" * 64},)
    shared = SharedModel.model_validate(
        {"reference": "hf:o/r:Q8_0", "commit": COMMIT, "quantization": "Q8_0", "files": files}
    )
    assert shared.answers(HubReference("o/r", "q8_0"))
    assert shared.answers(HubReference("o/r", "M-Q8_0.gguf", COMMIT))
    assert not shared.answers(HubReference("o/r"))  # the hub would give Q4_K_M
    assert shared.answers(HubReference("o/r", "Q8_0", "main"))
    assert not shared.answers(HubReference("o/r", "Q8_0", "dev"))
    assert not shared.answers(HubReference("o/other", "Q8_0"))
