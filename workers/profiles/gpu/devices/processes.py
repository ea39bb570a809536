"""Whose a process on a device is: of gridq's, an orphan of gridq's, or foreign.

Every child that gridq starts on a device has OWNER_VARIABLE in its environment, and so have the children of
that child: the process that started it, with the time of that process's start, as process ids are used again.
If that process is gone, the child is an orphan, whose memory nobody will give back by himself.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from gridq.stages.child_processes import list_tree
from workers.profiles.gpu.devices.device import DeviceProcess, Reading, Whose

OWNER_VARIABLE = "GRIDQ_OWNER"
PROC = Path("/proc")
MAX_ENVIRONMENT_BYTES = 128 * 1024


@dataclass(frozen=True)
class MemoryUse:
    """Who uses the memory of a device, in MB. The parts add up to the whole.

    `used`: gridq's processes. `orphan`: gridq's processes whose owner is gone. `foreign`: all others, and
    what no process is known for. `reserved`: the driver itself.
    """

    used: int
    orphan: int
    foreign: int
    reserved: int
    free: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def make_owner_mark() -> dict[str, str]:
    """Return the environment variable that marks a child of this process, for the child's environment."""
    pid = os.getpid()
    return {OWNER_VARIABLE: f"{pid}:{read_start(pid) or 0}"}


def find_whose(pid: int) -> Whose:
    """Return whose a process is. One that cannot be read, or of another container, is foreign."""
    mark = read_variable(pid, OWNER_VARIABLE)
    return "foreign" if mark is None else _judge_mark(mark)


def _judge_mark(mark: str) -> Whose:
    owner, _, start = mark.partition(":")
    if not owner.isdecimal():
        return "foreign"
    return "ours" if read_start(int(owner)) == start else "orphan"


def describe(pid: int, memory_mb: int | None) -> DeviceProcess:
    """Return a process with its name and whose it is."""
    return DeviceProcess(pid, memory_mb, read_name(pid), find_whose(pid))


def list_marked() -> tuple[DeviceProcess, ...] | None:
    """Return gridq's processes on this machine with their resident memory; None on a system without /proc."""
    if not PROC.is_dir():
        return None
    found = []
    for entry in PROC.iterdir():
        mark = read_variable(int(entry.name), OWNER_VARIABLE) if entry.name.isdecimal() else None
        if mark is not None:
            pid = int(entry.name)
            memory_mb = measure_resident_mb(pid) or None
            found.append(DeviceProcess(pid, memory_mb, read_name(pid), _judge_mark(mark)))
    return tuple(found)


def read_name(pid: int) -> str:
    """Return the name of a process's program, "" if it cannot be read. Its arguments are not shown."""
    try:
        return (PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def summarize_memory(reading: Reading, allocated_mb: int = 0) -> MemoryUse:
    """Return who uses the memory of a device.

    A driver that does not tell the memory of processes, or that sees other process ids than this container,
    hides gridq's: then what it has allocated counts as used, as far as so much is in use.
    """
    total_used = max(0, reading.memory_mb - reading.free_mb - reading.reserved_mb)
    sums: dict[Whose, int] = {"ours": 0, "orphan": 0, "foreign": 0}
    for process in reading.processes or ():
        sums[process.whose] += process.memory_mb or 0
    used = min(sums["ours"], total_used)
    orphan = min(sums["orphan"], total_used - used)
    if not used:
        used = min(allocated_mb, total_used - orphan)
    return MemoryUse(used, orphan, total_used - used - orphan, reading.reserved_mb, reading.free_mb)


def list_by_variable(name: str, value: str) -> list[int]:
    """Return the processes that were started with this environment variable, and their forks; none without
    /proc.
    """
    entries = PROC.iterdir() if PROC.is_dir() else ()
    pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return [pid for pid in pids if read_variable(pid, name) == value]


def read_variable(pid: int, name: str) -> str | None:
    """Return an environment variable with which a process was started; None if it cannot be read."""
    try:
        with (PROC / str(pid) / "environ").open("rb") as file:
            environment = file.read(MAX_ENVIRONMENT_BYTES)
    except OSError:  # it is gone, or of another user
        return None
    prefix = f"{name}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("ascii", "replace")
    return None


def read_start(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks; None if it is gone or a zombie."""
    fields = _read_stat(pid)
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None


def measure_cpu_seconds(pid: int) -> float | None:
    """Return for how long a process has computed, on all cores together; None if it is not known."""
    fields = _read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else None


def _read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on; empty if the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text("ascii", "replace")
    except OSError:
        return []
    return text[text.rfind(")") + 1 :].split()  # the name before may contain anything


def measure_resident_mb(pid: int | None, *, peak: bool = False) -> int:
    """Return the resident memory of a process, or its highest so far, rounded up; 0 if it is not known."""
    try:
        status = (PROC / str(pid) / "status").read_text("ascii", "replace")
    except OSError:
        return 0
    match = re.search(rf"^{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status, re.MULTILINE)
    return -(-int(match[1]) // 1024) if match else 0


def measure_tree_mb(pid: int) -> int:
    """Return the memory of a process and its descendants, rounded up; 0 if it is not known. What several of
    them share counts once.
    """
    tree = list_tree(pid)
    if len(tree) == 1:
        return measure_resident_mb(pid)
    return -(-sum(_read_proportional_kb(each) for each in tree) // 1024)


def sum_tree_mb(reading: Reading, pid: int) -> int:
    """Return the memory of a card that a process and its descendants held at `reading`; 0 if it is not
    known.
    """
    tree = set(list_tree(pid))
    return sum(each.memory_mb or 0 for each in reading.processes or () if each.pid in tree)


def _read_proportional_kb(pid: int) -> int:
    """Return the memory of a process in kB, with its part of what it shares with others."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text("ascii", "replace")
    except OSError:
        return measure_resident_mb(pid) * 1024
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) if match else 0
