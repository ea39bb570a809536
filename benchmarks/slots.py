"""Measure 200 calls at once on one seat of 200 slots: peak memory of its worker, lost answers, CPU for each
call.

The calls pass through gateway, server and worker to an endpoint that answers none of them before the last has
arrived. Then the same number of streams is read in parallel.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import http_load
from benchmarks.http import PACED_PROMPT
from benchmarks.http_sides import HttpSides, read_cpu_seconds
from benchmarks.measure import Figure, Measurement, print_progress
from benchmarks.sides import read_memory_mb
from benchmarks.streams import count_wrong_tokens

SEAT = "slots"
ANSWER_LENGTH = 2_000
"""The length of an answer in characters."""

MAX_MB = 250.0
MAX_CALL_MS = 5.0
"""With more, one core could not carry 200 slots with calls of a second each."""

MAX_PIECE_MS = 1.0
"""With more, one core could not carry 200 streams of 5 pieces a second."""


def run(*, concurrency: int = 200, rounds: int = 5, pieces: int = 50, rate: float = 5.0) -> list[Measurement]:
    """Return the figures of `concurrency` calls at once, `rounds` times, and of as many streams.

    Each stream has `pieces` pieces, `rate` a second.
    """
    with HttpSides(litellm=False, seats={SEAT: concurrency}) as sides:
        sides.start_seat(SEAT)
        worker, port = sides.grid.pids[SEAT], sides.grid.port
        print_progress(
            f"a worker of {concurrency} slots: {read_memory_mb(worker):.1f} MB before its first call"
        )
        at = f"{concurrency} calls at once on {concurrency} slots"
        before, lost = read_cpu_seconds(worker), 0
        for number in range(rounds):
            lost += _count_lost_answers(port, concurrency, number * concurrency)
        cpu = (read_cpu_seconds(worker) - before) * 1e3 / (rounds * concurrency)
        found: list[Measurement] = [
            Figure(
                f"{at}, whole: the worker's memory at most (RSS)", read_peak_memory_mb(worker), "MB", MAX_MB
            ),
            Figure(f"{at}, whole: answers lost of {rounds * concurrency:,}", lost, "answers", 0),
            Figure(f"{at}, whole: CPU of the worker for a call", cpu, "ms", MAX_CALL_MS),
        ]
        before = read_cpu_seconds(worker)
        text = PACED_PROMPT.format(tokens=pieces, rate=rate) + f" {ANSWER_LENGTH // pieces}"
        request = http_load.build_chat_request(port, text, model=SEAT, stream=True)
        streams = http_load.read_streams(
            port, request, streams=concurrency, over=concurrency / 200, while_open=lambda: None
        )
        cpu = (read_cpu_seconds(worker) - before) * 1e3 / (concurrency * pieces)
        of = f"{at}, streams of {pieces} pieces"
        print_progress(f"the worker afterwards: {read_memory_mb(worker):.1f} MB")
        return [
            *found,
            Figure(f"{of}: the worker's memory at most (RSS)", read_peak_memory_mb(worker), "MB", MAX_MB),
            Figure(
                f"{of}: lost or double of {concurrency * pieces:,}",
                count_wrong_tokens(streams, pieces),
                "pieces",
                0,
            ),
            Figure(f"{of}: CPU of the worker for a piece", cpu, "ms", MAX_PIECE_MS),
        ]


def _count_lost_answers(port: int, concurrency: int, first: int) -> int:
    """Return how many of the calls, all open at once, did not get their own answer."""
    numbers = range(first, first + concurrency)
    requests = [
        http_load.build_chat_request(port, f"barrier {concurrency} {number} {ANSWER_LENGTH}", model=SEAT)
        for number in numbers
    ]
    found = http_load.send_at_once(port, requests)
    wanted = [f"{number} ".ljust(ANSWER_LENGTH, "x") for number in numbers]
    return sum(
        answer["choices"][0]["message"]["content"] != text for answer, text in zip(found, wanted, strict=True)
    )


def read_peak_memory_mb(pid: int) -> float:
    """Return the peak resident memory of a process in MB (10⁶ bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"Process {pid} reports no peak memory")
