"""Cards of a stand-in for NVIDIA's library, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import nvml
from tests.waiting import wait_for
from workers.profiles.gpu.devices import nvidia


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nvml.Driver]:
    """A driver without cards, which the test adds."""
    nvml.load()
    made = nvml.Driver(tmp_path / "nvml")
    monkeypatch.setenv("GRIDQ_STUB_NVML", str(made.path))
    made.write()
    yield made
    made.end_hangs()
    wait_for(lambda: nvidia.DRIVER.stuck_seconds == 0)
