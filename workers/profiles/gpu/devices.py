"""Find the devices of this machine: NVIDIA and Apple GPUs, and the CPU."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.profiles.gpu.capability import ComputeBackend

NVIDIA_SECONDS = 1.2
"""A driver that does not answer in this time is reported as missing. A probe has two seconds."""

METAL_SHARE = 0.75
"""The share of unified memory that macOS lets the GPU use, unless `iogpu.wired_limit_mb` changes it."""

MB = 1024 * 1024


@dataclass(frozen=True)
class Device:
    """One device. Memory is in MB (2**20 bytes). Unified memory counts in full."""

    device: str
    name: str
    vendor: str
    backend: ComputeBackend
    memory_mb: int
    free_mb: int
    compute_cap: str | None = None
    uuid: str | None = None

    @property
    def usable_mb(self) -> int:
        """The memory that models may use. With Metal and on the CPU, the system needs the rest."""
        return int(self.memory_mb * METAL_SHARE) if self.backend in {"metal", "cpu"} else self.memory_mb


def find_devices(gpus: bool = True, cpu: bool = True) -> tuple[list[Device], list[str]]:
    """Return every device of this machine, GPUs first, and a sentence for each that was not found."""
    devices: list[Device] = []
    missing: list[str] = []
    if gpus:
        for find in (find_nvidia_devices, find_apple_devices):
            found, reasons = find()
            devices += found
            missing += reasons
    if cpu:
        devices.append(describe_cpu())
    return devices, missing


def find_nvidia_devices(
    library: Any = None, seconds: float = NVIDIA_SECONDS
) -> tuple[list[Device], list[str]]:
    """Return the NVIDIA devices within `seconds`, because a faulty driver can hang forever."""
    results: list[tuple[list[Device], list[str]]] = []
    thread = threading.Thread(target=lambda: results.append(_query_nvidia(library)), daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    return [], [f"The NVIDIA driver did not answer within {seconds:g} s"]


def _query_nvidia(library: Any) -> tuple[list[Device], list[str]]:
    if library is None:
        try:
            import pynvml

            library = pynvml
        except ImportError:
            return [], ["No NVIDIA GPU: the package nvidia-ml-py is not installed"]
    try:
        library.nvmlInit()
    except library.NVMLError as exc:
        return [], [f"No NVIDIA GPU: {exc}"]
    devices: list[Device] = []
    missing: list[str] = []
    for index in range(library.nvmlDeviceGetCount()):
        try:
            devices.append(_make_nvidia_device(library, index))
        except library.NVMLError as exc:
            missing.append(f"NVIDIA GPU {index} does not answer: {exc}")
    if not devices and not missing:
        missing.append("No NVIDIA GPU: the driver reports none")
    return devices, missing


def _make_nvidia_device(library: Any, index: int) -> Device:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        total, free = memory.total // MB, memory.free // MB
    except library.NVMLError:
        total = free = 0
    if total == 0:  # an integrated GPU shares the memory of the machine
        total, free = measure_total_mb(), measure_available_mb()
    major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        device=f"gpu{index}",
        name=_decode(library.nvmlDeviceGetName(handle)),
        vendor="nvidia",
        backend="cuda",
        memory_mb=total,
        free_mb=free,
        compute_cap=f"{major}.{minor}",
        uuid=_decode(library.nvmlDeviceGetUUID(handle)),
    )


def _decode(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def find_apple_devices(
    system: str | None = None, machine: str | None = None, run: Callable[[list[str]], str] | None = None
) -> tuple[list[Device], list[str]]:
    """Return the GPU of an Apple chip, which uses the memory of the machine."""
    run = run or _run_command
    if (system or platform.system()) != "Darwin":
        return [], []
    if (machine or platform.machine()) != "arm64":
        return [], ["No Apple GPU: this Mac has no Apple silicon"]
    try:
        name, size = run(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string", "hw.memsize"]).splitlines()[
            :2
        ]
        total = int(size) // MB
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        return [], [f"No Apple GPU: cannot read the memory size with sysctl ({type(exc).__name__})"]
    free = _measure_mac_available_mb(run) or int(total * METAL_SHARE)
    return [Device("gpu0", name.strip(), "apple", "metal", total, min(free, total))], []


def _measure_mac_available_mb(run: Callable[[list[str]], str]) -> int:
    """Return the memory that macOS can give at once: free, inactive and speculative pages."""
    try:
        output = run(["/usr/bin/vm_stat"])
        page_size = int(re.search(r"page size of (\d+)", output)[1])  # type: ignore[index]
        pages = re.findall(r"Pages (?:free|inactive|speculative): +(\d+)", output)
        return sum(map(int, pages)) * page_size // MB
    except (OSError, TypeError, ValueError, subprocess.SubprocessError):
        return 0


def _run_command(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=1, check=True)  # noqa: S603 - fixed paths
    return result.stdout


def describe_cpu() -> Device:
    """Return the CPU, with the memory of the machine or of its container."""
    name = platform.processor() or platform.machine() or "CPU"
    vendor = "unknown"
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        name = _find_field(info, "model name") or name
        vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(_find_field(info, "vendor_id"), vendor)
    except OSError:
        vendor = "apple" if platform.system() == "Darwin" else vendor
    return Device("cpu", name, vendor, "cpu", measure_total_mb(), measure_available_mb())


def _find_field(info: str, name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.+)$", info, re.MULTILINE)
    return match[1].strip() if match else ""


def count_spare_cores() -> int:
    """Return the number of cores that an engine may use: all of this process but one, at least one.

    The threads of an engine wait for each other at every layer. If one of them shares its core with another
    program, it slows down all of them: on two busy cores, two threads ran at a fifth of the speed of one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def measure_total_mb(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory of the machine, or the limit of the container if it is less, in MB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MB
    limit = _read_number(cgroup / "memory.max")
    return total if limit is None else min(total, limit // MB)


def measure_available_mb(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that is available without swapping, in this container, in MB."""
    try:
        meminfo = Path("/proc/meminfo").read_text("utf-8")
        match = re.search(r"^MemAvailable: +(\d+) kB", meminfo, re.MULTILINE)
        available = int(match[1]) // 1024 if match else measure_total_mb(cgroup)
    except OSError:
        available = _measure_mac_available_mb(_run_command) or measure_total_mb(cgroup)
    limit, used = _read_number(cgroup / "memory.max"), _read_number(cgroup / "memory.current")
    if limit is None or used is None:
        return available
    return max(0, min(available, (limit - used) // MB))


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None


def measure_free_mb(backend: str, uuid: str | None) -> int | None:
    """Return the free memory of a device in MB, None if not known. May block: not for heartbeats."""
    if backend != "cuda":
        return measure_available_mb()
    devices, _ = find_nvidia_devices()
    return next((each.free_mb for each in devices if uuid in {None, each.uuid}), None)
