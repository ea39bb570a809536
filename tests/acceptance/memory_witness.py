"""Watch from outside how much memory the models and stages of a grid's devices take.

`python -m tests.acceptance.memory_witness BOOK CAP_MB FOLDER…` looks every SECONDS at /proc: at each process
of a model or a stage whose environment has the HOME of one of the folders. It takes nothing from gridq but
what it checks: those of a home together have no more than CAP_MB, and none has more than the device's BOOK
says is reserved for it. When its input ends, it prints what it saw as JSON.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROC = Path("/proc")
SECONDS = 0.05
MODULES = {b"workers.profiles.gpu.engine_process", b"workers.profiles.gpu.python_stages.stage_process"}
UNLOADED_MB = 100
"""No process without a model has so much: Python and the engine's code take about 60."""

LOOKS_AT_NEW = 40
"""Looks at a new process until it counts as what it is: at first it is a copy of its parent."""

MB = 1024 * 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Witness:
    """What was seen: the number of looks, the longest time between two, the most that each home's processes
    took together, the processes by model or stage, and all that was over a limit, which must be nothing.
    """

    def __init__(self, book: Path, cap_mb: int, folders: list[str]) -> None:
        self._book = book
        self._cap_mb = cap_mb
        self._marks = {f"HOME={folder}".encode(): folder for folder in folders}
        self._looks_at: dict[int, int] = {}
        self._homes: dict[int, str] = {}
        self.looks = 0
        self.longest_gap = 0.0
        self.peaks = dict.fromkeys(folders, 0.0)
        self.most_reserved = dict.fromkeys(folders, 0)
        self.models: dict[str, int] = {}
        """The reserved processes seen, by model or stage."""
        self.breaches: list[str] = []
        self._named: set[int] = set()

    def look(self) -> None:
        self.looks += 1
        self._find_processes()
        first = self._find_breaches()
        if first:  # what was read one after another may never have been at once: it counts if it lasts
            again = self._find_breaches()
            self.breaches += [again[key] for key in first.keys() & again.keys()]

    def _find_processes(self) -> None:
        pids = {int(name) for name in os.listdir(PROC) if name.isdecimal()}
        self._looks_at = {pid: self._looks_at.get(pid, 0) + 1 for pid in pids}
        self._homes = {pid: home for pid, home in self._homes.items() if pid in pids}
        for pid, looks in self._looks_at.items():
            if looks <= LOOKS_AT_NEW and pid not in self._homes:
                home = self._find_home(pid)
                if home is not None:
                    self._homes[pid] = home

    def _find_home(self, pid: int) -> str | None:
        try:
            if MODULES.isdisjoint((PROC / str(pid) / "cmdline").read_bytes().split(b"\0")):
                return None
            environment = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return None
        return next((home for mark, home in self._marks.items() if mark in environment), None)

    def _find_breaches(self) -> dict[str, str]:
        resident = {pid: read_resident_mb(pid) for pid in self._homes}
        parents = {pid: read_parent(pid) for pid in self._homes}
        taken: dict[int, float] = {}  # by the process that was reserved for: a stage runs in a child of it
        for pid, mb in resident.items():
            root = parents[pid] if parents[pid] in resident else pid
            taken[root] = taken.get(root, 0.0) + mb
        entries = self._read_book()
        plans = {each["child"][0]: each for each in entries if each.get("child")}
        found: dict[str, str] = {}
        for home in self.peaks:
            total = sum(mb for pid, mb in taken.items() if self._homes[pid] == home)
            self.peaks[home] = max(self.peaks[home], round(total, 1))
            if total > self._cap_mb:
                found[home] = f"{total:.1f} of {self._cap_mb} MB taken in {home}"
            reserved = sum(each["mb"] for each in entries if each["holder"].startswith(f"{home}/"))
            self.most_reserved[home] = max(self.most_reserved[home], reserved)
        for pid, mb in taken.items():
            plan = plans.get(pid)
            if plan is None and mb > UNLOADED_MB:
                found[str(pid)] = f"process {pid} has {mb:.1f} MB that nobody reserved"
            if plan is not None and mb > plan["mb"]:
                found[str(pid)] = f"{plan['model']}, process {pid}: {mb:.1f} of {plan['mb']} MB reserved"
            if plan is not None and pid not in self._named:
                self._named.add(pid)
                self.models[plan["model"]] = self.models.get(plan["model"], 0) + 1
        return found

    def _read_book(self) -> list[dict[str, Any]]:
        """Return the entries of the book, those of dead processes too."""
        try:
            return list(json.loads(self._book.read_text())["entries"].values())
        except (FileNotFoundError, KeyError):  # nothing is reserved
            return []

    def to_json(self) -> dict[str, Any]:
        shown = ("looks", "longest_gap", "peaks", "most_reserved", "models")
        return {**{name: getattr(self, name) for name in shown}, "breaches": self.breaches[:20]}


def read_parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def read_resident_mb(pid: int) -> float:
    """Return the resident memory of a process, with the pages that it shares: never less than its share."""
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES / MB
    except (OSError, IndexError):
        return 0.0


@contextmanager
def watch_memory(book: Path, cap_mb: int, folders: list[Path]) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the witness during the block. It yields a function that ends it and returns what it saw."""
    command = [sys.executable, "-m", "tests.acceptance.memory_witness", str(book), str(cap_mb)]
    process = subprocess.Popen(
        [*command, *map(str, folders)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "watching\n"

    def end() -> dict[str, Any]:
        out, _ = process.communicate(timeout=60)
        seen: dict[str, Any] = json.loads(out)
        return seen

    try:
        yield end
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main() -> None:
    witness = Witness(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    print("watching", flush=True)
    before = time.monotonic()
    while not select.select([sys.stdin], [], [], SECONDS)[0]:  # its end
        witness.look()
        now = time.monotonic()
        witness.longest_gap, before = max(witness.longest_gap, round(now - before, 2)), now
    print(json.dumps(witness.to_json()), flush=True)


if __name__ == "__main__":
    main()
