"""The CPU, and the memory of the machine or its container."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.profiles.gpu.devices import cpu, discovery


def test_the_cpu_is_always_found() -> None:
    found = cpu.describe()
    assert found.backend == "cpu"
    assert 0 < found.free_mb <= found.memory_mb
    assert found.name


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{512 * 1024 * 1024}\n")
    (tmp_path / "memory.current").write_text(f"{200 * 1024 * 1024}\n")
    assert cpu.measure_total_mb(tmp_path) == 512
    assert cpu.measure_available_mb(tmp_path) == 312
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu.measure_total_mb(tmp_path) > 512


@pytest.mark.parametrize("gpus", [True, False])
def test_finding_devices_never_raises(gpus: bool) -> None:
    found, missing = discovery.find_devices(gpus=gpus)
    assert found[-1].device == "cpu"
    assert bool(missing) or any(device.backend != "cpu" for device in found) or not gpus
