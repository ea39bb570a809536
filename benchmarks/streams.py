"""Measure streams of tokens through the gateway: how late a token is, and the CPU that it takes.

There are two loads: many slow streams, and few fast ones. The CPU is compared with that of the commit BEFORE,
which wrote the pieces of each stream every 50 ms. Both sides have a grid and an upstream of their own, with
the same benchmark code, and take turns.

`python -m benchmarks.streams 300` starts one side for 300 streams, prints where it is, and stops at the end
of its standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from benchmarks import http_load
from benchmarks.http import PACED_PROMPT
from benchmarks.http_load import Token
from benchmarks.http_sides import HttpSides, ProgramUnavailable, Side
from benchmarks.measure import (
    Figure,
    Measurement,
    MissingComparison,
    Ratio,
    compute_percentile,
    print_progress,
)
from benchmarks.sides import read_memory_mb

NOW = "now"
BEFORE = "87e31ee"
LOADS = ((300, 5), (20, 100))
"""Streams, and tokens a second of each."""

ROOT = Path(__file__).parent.parent


@dataclass
class Run:
    """What was measured of one side under one load.

    `late`: the seconds of each token from upstream to reader; empty for the old code, which may be too slow
    to have all streams open together. `wrong`: the tokens lost or double, of `tokens` in all. `cpu` is in
    seconds, `memory` that of the gateway in MB.
    """

    late: list[float] = field(default_factory=list)
    tokens: int = 0
    wrong: int = 0
    cpu: float = 0.0
    memory: float = 0.0

    def add(self, other: Run) -> None:
        self.late += other.late
        self.tokens += other.tokens
        self.wrong += other.wrong
        self.cpu += other.cpu
        self.memory = max(self.memory, other.memory)

    @property
    def p99_ms(self) -> float:
        return compute_percentile(self.late, 0.99) * 1e3

    @property
    def cpu_ms(self) -> float:
        """The CPU of a token."""
        return self.cpu * 1e3 / self.tokens


def run(
    *,
    loads: Sequence[tuple[int, int]] = LOADS,
    rounds: int = 2,
    duration: float = 8.0,
    before: str | None = BEFORE,
) -> list[Measurement]:
    """Return the figures of each load, which is measured for `duration` seconds `rounds` times.

    Without `before`, the CPU is not compared.
    """
    most = max(streams for streams, _ in loads)
    with ExitStack() as stack:
        sides = [stack.enter_context(_start_side(ROOT, most))]
        reason = "not requested"
        if before is not None:
            try:
                folder = stack.enter_context(_check_out(before))
                sides.append(stack.enter_context(_start_side(folder, most)))
            except ProgramUnavailable as exc:
                reason = str(exc)
        found: list[Measurement] = []
        for streams, rate in loads:
            runs = [Run() for _ in sides]
            for number in range(rounds):
                for at in range(len(sides)):
                    turn = (number + at) % len(sides)
                    runs[turn].add(_run_load(sides[turn], streams, rate, duration))
            found += _make_rows(f"{streams} streams at {rate} tokens/s", runs, before, reason)
        return found


def _make_rows(load: str, runs: Sequence[Run], before: str | None, reason: str) -> list[Measurement]:
    now, *earlier = runs
    print_progress(
        f"{load}: {compute_percentile(now.late, 0.5) * 1e3:.1f} ms late, p99 {now.p99_ms:.1f}, most "
        f"{max(now.late) * 1e3:.1f}; CPU of a token {', '.join(f'{each.cpu_ms:.3f}' for each in runs)} ms"
    )
    name = f"{load}, CPU of gateway and worker for a token"
    cpu: Measurement = MissingComparison(name, now.cpu_ms, "ms", "≤ 1.3", reason)
    for each in earlier:
        cpu = Ratio(name, now.cpu_ms, each.cpu_ms, "ms", 1.3, other=f"gridq {before}")
    return [
        cpu,
        Figure(f"{load}, lateness of a token, p99", now.p99_ms, "ms", 10),
        Figure(f"{load}, tokens lost or double of {now.tokens:,}", now.wrong, "tokens", 0),
        Figure(f"{load}, memory of the gateway (RSS)", now.memory, "MB", 250),
    ]


def _run_load(side: Side, streams: int, rate: int, duration: float) -> Run:
    over = max(streams / 100, 0.2)
    each = round((over + duration) * rate)
    request = http_load.build_chat_request(
        side.port, PACED_PROMPT.format(tokens=each, rate=rate), model="paced", stream=True
    )
    memory = [read_memory_mb(side.pids["gateway"])]
    before, began = side.read_cpu(), time.monotonic()
    found = http_load.read_streams(
        side.port,
        request,
        streams=streams,
        over=over,
        while_open=lambda: memory.append(read_memory_mb(side.pids["gateway"])),
    )
    took = time.monotonic() - began
    used = {name: seconds - before[name] for name, seconds in side.read_cpu().items()}
    shares = ", ".join(f"{name} {seconds * 100 / took:.0f} %" for name, seconds in used.items())
    print_progress(f"{side.name}, {streams} streams at {rate} tokens/s, of a core: {shares}")
    return Run(
        compute_delays(found) if side.name == NOW else [],
        streams * each,
        count_wrong_tokens(found, each),
        used["gateway"] + used["worker"],
        max(memory),
    )


def compute_delays(streams: Sequence[Sequence[Token]]) -> list[float]:
    """Return the seconds from upstream to reader of each token sent while all streams were open.

    RuntimeError: they never were.
    """
    opened = max(tokens[0].sent for tokens in streams)
    ended = min(tokens[-1].sent for tokens in streams)
    if ended < opened:
        raise RuntimeError("The first stream ended before the last one began")
    return [token.delay for token in chain(*streams) if opened <= token.sent <= ended]


def count_wrong_tokens(streams: Sequence[Sequence[Token]], each: int) -> int:
    """Return the number of lost and repeated tokens in streams of `each` tokens."""
    different = [len({token.sent for token in tokens}) for tokens in streams]
    return sum(abs(each - count) for count in different) + sum(map(len, streams)) - sum(different)


# -- the sides


@contextmanager
def _check_out(commit: str) -> Iterator[Path]:
    """Yield a folder with the code of a commit, and these benchmarks. Raises ProgramUnavailable."""
    with tempfile.TemporaryDirectory(prefix="gridq-bench-") as name:
        folder = Path(name)
        archive = folder / "code.tar"
        command = ["git", "archive", "--output", str(archive), commit, "gridq", "workers", "broker_config"]
        command += ["tests/__init__.py", "tests/fakes"]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError as exc:
            raise ProgramUnavailable(f"git cannot be run: {exc}") from None
        if done.returncode:
            raise ProgramUnavailable(f"the commit {commit} is not in this checkout's history")
        shutil.unpack_archive(archive, folder, filter="data")
        shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
        yield folder


@contextmanager
def _start_side(folder: Path, streams: int) -> Iterator[Side]:
    """Start the code in `folder`, and yield its gateway and its worker. Raises ProgramUnavailable."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.streams", str(streams)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child, child.stdin:
        line = child.stdout.readline()
        if not line:
            raise ProgramUnavailable(f"the grid of {folder} did not start")
        where = json.loads(line)
        yield Side(NOW if folder == ROOT else "before", where["port"], where["pids"])


def serve(streams: int) -> None:
    """Run a grid for as many streams until the end of standard input."""
    with HttpSides(litellm=False, seats={"paced": streams}) as sides:
        sides.start_seat("paced")
        pids = {"gateway": sides.grid.pids["gateway"], "worker": sides.grid.pids["paced"]}
        print(json.dumps({"port": sides.grid.port, "pids": pids}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
