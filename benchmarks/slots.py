"""Two hundred calls at once on one seat of as many slots: what its worker holds at most, what is lost, and
what a call costs it of the processor.

The calls go the whole way, gateway, server, worker, to an endpoint that answers none of them before the last
has come; then as many streams are read side by side.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import http_load
from benchmarks.http import PACED, amiss
from benchmarks.http_sides import HttpSides, cpu_of
from benchmarks.measure import Figure, Measured, tell
from benchmarks.sides import memory_of

SEAT = "concurrency"
LENGTH = 2_000
"""Characters of an answer."""

MB = 250.0
CALL_MS = 5.0
"""With more, one core could not carry 200 slots with calls of a second each."""

PIECE_MS = 1.0
"""With more, one core could not carry 200 streams of 5 pieces a second."""


def run(*, concurrency: int = 200, rounds: int = 5, pieces: int = 50, rate: float = 5.0) -> list[Measured]:
    """`rounds` times `concurrency` whole answers at once; then `concurrency` streams of `pieces`, `rate` a second."""
    with HttpSides(litellm=False, seats={SEAT: concurrency}) as sides:
        sides.start_seat(SEAT)
        worker, port = sides.grid.pids[SEAT], sides.grid.port
        tell(f"a worker of {concurrency} slots: {memory_of(worker):.1f} MB before its first call")
        at = f"{concurrency} calls at once on {concurrency} slots"
        before, lost = cpu_of(worker), 0
        for number in range(rounds):
            lost += _round(port, concurrency, number * concurrency)
        cpu = (cpu_of(worker) - before) * 1e3 / (rounds * concurrency)
        found: list[Measured] = [
            Figure(f"{at}, whole: the worker's memory at most (RSS)", peak_of(worker), "MB", MB),
            Figure(f"{at}, whole: answers lost of {rounds * concurrency:,}", lost, "answers", 0),
            Figure(f"{at}, whole: CPU of the worker for a call", cpu, "ms", CALL_MS),
        ]
        before = cpu_of(worker)
        text = PACED.format(tokens=pieces, rate=rate) + f" {LENGTH // pieces}"
        request = http_load.chat(port, text, model=SEAT, stream=True)
        streams = http_load.open_streams(
            port, request, streams=concurrency, over=concurrency / 200, while_open=lambda: None
        )
        cpu = (cpu_of(worker) - before) * 1e3 / (concurrency * pieces)
        of = f"{at}, streams of {pieces} pieces"
        tell(f"the worker afterwards: {memory_of(worker):.1f} MB")
        return [
            *found,
            Figure(f"{of}: the worker's memory at most (RSS)", peak_of(worker), "MB", MB),
            Figure(f"{of}: lost or double of {concurrency * pieces:,}", amiss(streams, pieces), "pieces", 0),
            Figure(f"{of}: CPU of the worker for a piece", cpu, "ms", PIECE_MS),
        ]


def _round(port: int, concurrency: int, first: int) -> int:
    """How many of so many calls, all open before one is answered, did not get the answer that is theirs."""
    numbers = range(first, first + concurrency)
    requests = [
        http_load.chat(port, f"held {concurrency} {number} {LENGTH}", model=SEAT) for number in numbers
    ]
    found = http_load.at_once(port, requests)
    wanted = [f"{number} ".ljust(LENGTH, "x") for number in numbers]
    return sum(
        answer["choices"][0]["message"]["content"] != text for answer, text in zip(found, wanted, strict=True)
    )


def peak_of(pid: int) -> float:
    """The most that a process has ever had resident, in MB (10⁶ bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"the process {pid} has no memory")
