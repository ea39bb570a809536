"""What is known of a device: what it is (`Device`), and how it is at one moment (`Reading`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from workers.profiles.gpu.capability import HEADROOM_MB, ComputeBackend, ComputeCapability

MB = 1024 * 1024

SYSTEM_SHARE = 0.25
"""The share of unified memory, or of the machine's for models on the CPU, that stays with the system. macOS
lets a GPU use the rest, unless `iogpu.wired_limit_mb` changes it.
"""

CARD_BACKENDS = frozenset({"cuda", "rocm"})
"""Backends of cards: they have memory of their own, of which a driver tells who holds how much."""


class DeviceError(Exception):
    """A device, or its driver, does not answer; the text is the reason."""


class DeviceLost(DeviceError):
    """The device is gone or needs a reset: it will not answer again by itself."""


class DriverTimeout(DeviceError):
    """The driver has not answered in time. It may still do so."""


@dataclass(frozen=True)
class Device:
    """One device. Memory is in MB (2**20 bytes). Unified memory counts in full.

    `uuid` selects it for a child process; a MIG instance has its own. `unknown` says of each field that the
    driver does not tell why not.
    """

    device: str
    name: str
    vendor: str
    backend: ComputeBackend
    memory_mb: int
    free_mb: int
    compute_cap: ComputeCapability | None = None
    uuid: str | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    def compute_usable_mb(self, headroom_mb: int = HEADROOM_MB) -> int:
        """Return the memory that models and stages may use: all but the headroom of a GPU, and with unified
        memory and on the CPU all but the system's share.
        """
        shared = int(self.memory_mb * (1 - SYSTEM_SHARE))
        if self.backend == "cpu":
            return shared
        left = max(0, self.memory_mb - headroom_mb)
        return min(left, shared) if self.backend == "metal" else left


Whose = Literal["ours", "orphan", "foreign"]
"""Whose a process is: gridq's, gridq's whose owner is gone, or any other."""


@dataclass(frozen=True)
class DeviceProcess:
    """A process that uses a device, as it was at the reading, and its memory there in MB; None if the driver
    does not tell it.
    """

    pid: int
    memory_mb: int | None = None
    name: str = ""
    whose: Whose = "foreign"


@dataclass(frozen=True)
class Reading:
    """One reading of a device. A field that its driver does not tell is None, with the reason in `unknown`.

    Memory is in MB; `reserved_mb` is what the driver keeps for itself. `utilisation` is a share from 0 to 1,
    `temperature` in degrees Celsius, `power_watts` the momentary power, `energy_joules` a counter since the
    driver was loaded. `faults` are errors of the hardware in words. `taken_at` is in seconds since 1970.
    """

    memory_mb: int
    free_mb: int
    reserved_mb: int = 0
    processes: tuple[DeviceProcess, ...] | None = None
    utilisation: float | None = None
    temperature: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    faults: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    taken_at: float = field(default_factory=time.time)


def list_visibility_variables(backend: str, uuid: str | None) -> dict[str, str]:
    """Return the environment variables with which a child process sees this device and no other GPU."""
    if backend == "rocm":
        # ROCm reads CUDA_VISIBLE_DEVICES too: an empty one would hide the device.
        return {"ROCR_VISIBLE_DEVICES": uuid or ""}
    return {"CUDA_VISIBLE_DEVICES": (uuid or "") if backend == "cuda" else "", "ROCR_VISIBLE_DEVICES": ""}
