"""Measure the memory that one request with a body of 30 MB takes in the gateway, the seat's worker and the
server, at most, beside what each had before.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import http_load
from benchmarks.http_sides import HttpSides
from benchmarks.measure import Figure, Measurement
from benchmarks.sides import read_memory_mb
from benchmarks.slots import read_peak_memory_mb

MEGABYTE = 1_000_000

GOALS = {"gateway": 180.0, "worker": 120.0, "server": 60.0}
"""The most that a body of 30 MB may take in each program, in MB: six, four and two times its size."""


def run(*, megabytes: int = 30, rounds: int = 3) -> list[Measurement]:
    """Return the memory that a request takes at most in each program, the highest of `rounds`."""
    with HttpSides(litellm=False) as sides:
        pids = {**sides.grid.pids, **sides.server.pids}
        request = http_load.build_chat_request(sides.grid.port, "x" * megabytes * MEGABYTE)
        taken = dict.fromkeys(GOALS, 0.0)
        for _ in range(rounds):
            before = {}
            for name in GOALS:
                Path(f"/proc/{pids[name]}/clear_refs").write_text("5")  # its peak begins anew
                before[name] = read_memory_mb(pids[name])
            (answer,) = http_load.send_at_once(sides.grid.port, [request])
            assert answer["choices"], answer
            for name in GOALS:
                taken[name] = max(taken[name], read_peak_memory_mb(pids[name]) - before[name])
        return [
            Figure(
                f"a body of {megabytes} MB: memory in the {name}, beside what it had", mb, "MB", GOALS[name]
            )
            for name, mb in taken.items()
        ]
