"""The GPU of an Apple chip, which shares the memory of the machine."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable

from workers.profiles.gpu.devices.device import MB, SYSTEM_SHARE, Device

RunCommand = Callable[[list[str]], str]


def find_devices(
    system: str | None = None, machine: str | None = None, run: RunCommand | None = None
) -> tuple[list[Device], list[str]]:
    """Return the GPU of an Apple chip, and why there is none on another Mac."""
    run = run or run_command
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
    free = measure_available_mb(run) or int(total * (1 - SYSTEM_SHARE))
    return [Device("gpu0", name.strip(), "apple", "metal", total, min(free, total))], []


def measure_available_mb(run: RunCommand | None = None) -> int:
    """Return the memory that macOS can give at once: free, inactive and speculative pages; 0 if not known."""
    try:
        output = (run or run_command)(["/usr/bin/vm_stat"])
        page_size = int(re.search(r"page size of (\d+)", output)[1])  # type: ignore[index]
        pages = re.findall(r"Pages (?:free|inactive|speculative): +(\d+)", output)
        return sum(map(int, pages)) * page_size // MB
    except (OSError, TypeError, ValueError, subprocess.SubprocessError):
        return 0


def run_command(command: list[str]) -> str:
    """Return what a program of the system prints within a second."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=1, check=True)  # noqa: S603 - fixed paths
    return result.stdout
