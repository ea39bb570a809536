"""The CPU and the memory of this machine, or of its container."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from workers.profiles.gpu.devices import apple, processes
from workers.profiles.gpu.devices.device import MB, Device, Reading

CGROUP = Path("/sys/fs/cgroup")


def describe() -> Device:
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


def read() -> Reading:
    """Return the memory of the machine, and gridq's processes that use it."""
    return Reading(measure_total_mb(), measure_available_mb(), processes=processes.list_marked())


def count_spare_cores() -> int:
    """Return the number of cores that an engine may use: all of this process but one, at least one.

    The threads of an engine wait for each other at every layer. If one of them shares its core with another
    program, it slows down all of them: on two busy cores, two threads ran at a fifth of the speed of one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def measure_total_mb(cgroup: Path = CGROUP) -> int:
    """Return the memory of the machine, or the limit of the container if it is less, in MB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MB
    limit = _read_number(cgroup / "memory.max")
    return total if limit is None else min(total, limit // MB)


def measure_available_mb(cgroup: Path = CGROUP) -> int:
    """Return the memory that is available without swapping, in this container, in MB."""
    try:
        meminfo = Path("/proc/meminfo").read_text("utf-8")
        match = re.search(r"^MemAvailable: +(\d+) kB", meminfo, re.MULTILINE)
        available = int(match[1]) // 1024 if match else measure_total_mb(cgroup)
    except OSError:
        available = apple.measure_available_mb() or measure_total_mb(cgroup)
    limit, used = _read_number(cgroup / "memory.max"), _read_number(cgroup / "memory.current")
    if limit is None or used is None:
        return available
    return max(0, min(available, (limit - used) // MB))


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None
