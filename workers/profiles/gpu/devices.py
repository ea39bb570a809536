"""The devices of this machine: NVIDIA's by its own library, Apple's by the system, the CPU always."""

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

from workers.profiles.gpu.capability import Backend

NVIDIA_SECONDS = 1.2
"""A driver that does not answer in this time is reported as missing; a probe has two seconds."""

METAL_SHARE = 0.75
"""What macOS lets the GPU take of unified memory unless `iogpu.wired_limit_mb` says otherwise."""

MB = 1024 * 1024


@dataclass(frozen=True)
class Device:
    """One device. `memory_mb` and `free_mb` count in MB of 2**20 bytes; unified memory counts whole."""

    device: str
    name: str
    vendor: str
    backend: Backend
    memory_mb: int
    free_mb: int
    compute_cap: str | None = None
    uuid: str | None = None

    @property
    def usable_mb(self) -> int:
        """What models may take of it: Metal's share of unified memory; of the CPU's what leaves the system
        room.
        """
        return int(self.memory_mb * METAL_SHARE) if self.backend in {"metal", "cpu"} else self.memory_mb


def found(gpus: bool = True, cpu: bool = True) -> tuple[list[Device], list[str]]:
    """Every device of this machine, GPUs first, and in words what was looked for in vain. It never raises."""
    devices: list[Device] = []
    missing: list[str] = []
    if gpus:
        for look in (nvidia, apple):
            more, reasons = look()
            devices += more
            missing += reasons
    if cpu:
        devices.append(processor())
    return devices, missing


def nvidia(library: Any = None, seconds: float = NVIDIA_SECONDS) -> tuple[list[Device], list[str]]:
    """The NVIDIA devices, asked for `seconds` at most: a driver in trouble hangs for good."""
    answer: list[tuple[list[Device], list[str]]] = []
    thread = threading.Thread(target=lambda: answer.append(_nvidia(library)), daemon=True)
    thread.start()
    thread.join(seconds)
    if answer:
        return answer[0]
    return [], [f"The NVIDIA driver did not answer within {seconds:g} s"]


def _nvidia(library: Any) -> tuple[list[Device], list[str]]:
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
            devices.append(_nvidia_device(library, index))
        except library.NVMLError as exc:
            missing.append(f"NVIDIA GPU {index} does not answer: {exc}")
    if not devices and not missing:
        missing.append("No NVIDIA GPU: the driver lists none")
    return devices, missing


def _nvidia_device(library: Any, index: int) -> Device:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        total, free = memory.total // MB, memory.free // MB
    except library.NVMLError:
        total = free = 0
    if total == 0:  # an integrated GPU has no memory of its own: it shares the machine's
        total, free = memory_mb(), free_mb()
    major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        device=f"gpu{index}",
        name=_text(library.nvmlDeviceGetName(handle)),
        vendor="nvidia",
        backend="cuda",
        memory_mb=total,
        free_mb=free,
        compute_cap=f"{major}.{minor}",
        uuid=_text(library.nvmlDeviceGetUUID(handle)),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def apple(
    system: str | None = None, machine: str | None = None, ask: Callable[[list[str]], str] | None = None
) -> tuple[list[Device], list[str]]:
    """The GPU of an Apple chip; its memory is the machine's own."""
    ask = ask or _ask
    if (system or platform.system()) != "Darwin":
        return [], []
    if (machine or platform.machine()) != "arm64":
        return [], ["No Apple GPU: this Mac has no Apple chip"]
    try:
        name, size = ask(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string", "hw.memsize"]).splitlines()[
            :2
        ]
        total = int(size) // MB
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        return [], [f"No Apple GPU: sysctl does not tell the memory ({type(exc).__name__})"]
    free = _mac_free_mb(ask) or int(total * METAL_SHARE)
    return [Device("gpu0", name.strip(), "apple", "metal", total, min(free, total))], []


def _mac_free_mb(ask: Callable[[list[str]], str]) -> int:
    """What macOS could give at once: free, inactive and speculative pages."""
    try:
        told = ask(["/usr/bin/vm_stat"])
        page = int(re.search(r"page size of (\d+)", told)[1])  # type: ignore[index]
        pages = re.findall(r"Pages (?:free|inactive|speculative): +(\d+)", told)
        return sum(map(int, pages)) * page // MB
    except (OSError, TypeError, ValueError, subprocess.SubprocessError):
        return 0


def _ask(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1, check=True)  # noqa: S603 - fixed paths
    return ran.stdout


def processor() -> Device:
    """The CPU, with the machine's memory (or what a container is allowed of it)."""
    name = platform.processor() or platform.machine() or "CPU"
    vendor = "unknown"
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        name = _field(info, "model name") or name
        vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(_field(info, "vendor_id"), vendor)
    except OSError:
        vendor = "apple" if platform.system() == "Darwin" else vendor
    return Device("cpu", name, vendor, "cpu", memory_mb(), free_mb())


def _field(info: str, name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.+)$", info, re.MULTILINE)
    return match[1].strip() if match else ""


def spare_cores() -> int:
    """The cores an engine may use: all this process may run on but one, at least one.

    An engine's threads wait for each other at every layer. Where one of them shares its core with another
    program, all go at its pace: on two busy cores two threads were measured at a fifth of the speed of one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def memory_mb(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The machine's memory, or the container's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MB
    limit = _number(cgroup / "memory.max")
    return total if limit is None else min(total, limit // MB)


def free_mb(cgroup: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """The memory that could be had now without swapping, in this container."""
    try:
        match = re.search(r"^MemAvailable: +(\d+) kB", meminfo.read_text("utf-8"), re.MULTILINE)
        available = int(match[1]) // 1024 if match else memory_mb(cgroup)
    except OSError:
        available = _mac_free_mb(_ask) or memory_mb(cgroup)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return available
    return max(0, min(available, (limit - used) // MB))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None


def free_now(backend: str, uuid: str | None) -> int | None:
    """What is free on a device now, in MB; None where it cannot be told. It may block: never ask in a
    heartbeat.
    """
    if backend != "cuda":
        return free_mb()
    devices, _ = nvidia()
    return next((each.free_mb for each in devices if uuid in {None, each.uuid}), None)
