"""The GPU of an Apple chip, from what macOS's own commands print."""

from __future__ import annotations

from workers.profiles.gpu.devices import apple
from workers.profiles.gpu.devices.device import Device

GB = 1024**3

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               65536.
Pages active:                            999999.
Pages inactive:                          131072.
Pages speculative:                        65536.
"""


def mac(command: list[str]) -> str:
    return f"Apple M4 Max\n{64 * GB}\n" if "sysctl" in command[0] else VM_STAT


def test_an_apple_chip_counts_its_unified_memory() -> None:
    (chip,), missing = apple.find_devices("Darwin", "arm64", mac)
    assert (chip.name, chip.backend, chip.vendor) == ("Apple M4 Max", "metal", "apple")
    assert chip.memory_mb == 64 * 1024
    assert chip.free_mb == 4 * 1024
    assert chip.compute_usable_mb() == 48 * 1024
    assert missing == []


def test_the_larger_of_head_room_and_the_systems_share_is_kept() -> None:
    small = Device("gpu0", "M1", "apple", "metal", 1024, 1024)
    assert small.compute_usable_mb(512) == 512
    assert small.compute_usable_mb(0) == 768


def test_an_unreadable_mac_is_reported() -> None:
    def silent(command: list[str]) -> str:
        raise OSError("no sysctl")

    assert "sysctl" in apple.find_devices("Darwin", "arm64", silent)[1][0]
    assert "no Apple silicon" in apple.find_devices("Darwin", "x86_64", mac)[1][0]
    assert apple.find_devices("Linux", "x86_64", mac) == ([], [])
