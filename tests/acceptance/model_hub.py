"""A hub on this machine that has the real small model, as `hf:org/Smol-GGUF`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.hub_server import HubServer, Repository
from tests.small_model import find_small_model


@pytest.fixture
def hub() -> Iterator[HubServer]:
    file = find_small_model()
    assert file is not None
    with HubServer({"org/Smol-GGUF": Repository({"Smol-Q4_1.gguf": file})}) as server:
        yield server
