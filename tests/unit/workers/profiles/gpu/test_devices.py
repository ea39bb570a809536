"""The devices, on machines that this is not: NVIDIA's library and macOS's answers are played."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.profiles.gpu import devices

GB = 1024**3


class NVMLError(Exception):
    pass


class Nvml:
    """The part of pynvml that gridq uses, for cards given as (name, total, free, capability)."""

    NVMLError = NVMLError

    def __init__(self, *cards: tuple[Any, int, int, tuple[int, int]], fails: str = "") -> None:
        self.cards = cards
        self.fails = fails

    def nvmlInit(self) -> None:
        if self.fails == "init":
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.fails == f"card {index}":
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if self.cards[handle][1] < 0:
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=self.cards[handle][1], free=self.cards[handle][2])

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.cards[handle][3]

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self.cards[handle][0]

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return b"GPU-%d" % handle


def test_nvidia_cards_are_described():
    found, missing = devices.find_nvidia_devices(
        Nvml((b"NVIDIA RTX 4090", 24 * GB, 20 * GB, (8, 9)), ("B200", 180 * GB, GB, (10, 0)))
    )
    assert missing == []
    assert [(card.device, card.name, card.memory_mb, card.free_mb, card.compute_cap) for card in found] == [
        ("gpu0", "NVIDIA RTX 4090", 24 * 1024, 20 * 1024, "8.9"),
        ("gpu1", "B200", 180 * 1024, 1024, "10.0"),
    ]
    assert found[0].uuid == "GPU-0"


def test_an_integrated_nvidia_gpu_counts_the_machines_memory():
    (card,), _ = devices.find_nvidia_devices(Nvml(("GB10", -1, 0, (12, 1))))
    assert card.memory_mb == devices.measure_total_mb() > 0


def test_a_missing_driver_is_reported():
    assert devices.find_nvidia_devices(Nvml(fails="init")) == ([], ["No NVIDIA GPU: Driver Not Loaded"])
    assert devices.find_nvidia_devices(Nvml())[1] == ["No NVIDIA GPU: the driver reports none"]


def test_a_lost_card_does_not_hide_others():
    card = ("A", GB, GB, (8, 0))
    found, missing = devices.find_nvidia_devices(Nvml(card, card, fails="card 0"))
    assert [each.device for each in found] == ["gpu1"]
    assert "GPU is lost" in missing[0]


def test_a_hanging_driver_is_given_up():
    released = threading.Event()

    class Hanging(Nvml):
        def nvmlInit(self) -> None:
            released.wait(30)

    found, missing = devices.find_nvidia_devices(Hanging(), seconds=0.05)
    released.set()
    assert found == []
    assert "did not answer" in missing[0]


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               65536.
Pages active:                            999999.
Pages inactive:                          131072.
Pages speculative:                        65536.
"""


def mac(command: list[str]) -> str:
    return f"Apple M4 Max\n{64 * GB}\n" if "sysctl" in command[0] else VM_STAT


def test_an_apple_chip_counts_its_unified_memory():
    (chip,), missing = devices.find_apple_devices("Darwin", "arm64", mac)
    assert (chip.name, chip.backend, chip.vendor) == ("Apple M4 Max", "metal", "apple")
    assert chip.memory_mb == 64 * 1024
    assert chip.free_mb == 4 * 1024
    assert chip.usable_mb == 48 * 1024
    assert missing == []


def test_an_unreadable_mac_is_reported():
    def silent(command: list[str]) -> str:
        raise OSError("no sysctl")

    assert "sysctl" in devices.find_apple_devices("Darwin", "arm64", silent)[1][0]
    assert "no Apple silicon" in devices.find_apple_devices("Darwin", "x86_64", mac)[1][0]
    assert devices.find_apple_devices("Linux", "x86_64", mac) == ([], [])


def test_the_cpu_is_always_found():
    cpu = devices.describe_cpu()
    assert cpu.backend == "cpu"
    assert 0 < cpu.free_mb <= cpu.memory_mb
    assert cpu.name


def test_a_containers_limit_counts(tmp_path: Path):
    (tmp_path / "memory.max").write_text(f"{512 * 1024 * 1024}\n")
    (tmp_path / "memory.current").write_text(f"{200 * 1024 * 1024}\n")
    assert devices.measure_total_mb(tmp_path) == 512
    assert devices.measure_available_mb(tmp_path) == 312
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.measure_total_mb(tmp_path) > 512


@pytest.mark.parametrize("gpus", [True, False])
def test_finding_devices_never_raises(gpus: bool):
    found, missing = devices.find_devices(gpus=gpus)
    assert found[-1].device == "cpu"
    assert bool(missing) or any(device.backend != "cpu" for device in found) or not gpus
