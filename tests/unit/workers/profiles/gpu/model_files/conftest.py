"""A hub of the test's own, with its cache and home folder in `tmp_path`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.hub_server import HubServer, Repository
from tests.gguf_files import write_gguf


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A GGUF file of about a megabyte."""
    return write_gguf(tmp_path / "source.gguf", elements=262_144)


@pytest.fixture
def hub_server(tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    repositories = {
        "org/Tiny-GGUF": Repository({"Tiny-Q8_0.gguf": b"GGUF", "Tiny-Q4_K_M.gguf": model_file}),
        "org/Gated-GGUF": Repository({"Gated-Q4_K_M.gguf": model_file}, gated=True),
        "org/Private-GGUF": Repository({"Private-Q4_K_M.gguf": model_file}, private=True),
    }
    with HubServer(repositories) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's client writes what came each 64 KiB instead of 10 MiB."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 65_536)
