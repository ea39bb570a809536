"""Measure the longest call in the server while graphs of 1,000 to 20,000 stages are admitted, run and ended.

Times are the server's own, from its slow log: of each scenario the longest call of any script or command,
since nobody else is served meanwhile. Each scenario runs `rounds` times, and the least of its longest calls
counts: other load on the machine makes calls slower, never faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Measurement, print_progress
from benchmarks.scripts import prioritize_server
from benchmarks.sides import use_environment
from gridq.app import app
from gridq.graph.plan import Arms, Scope
from gridq.messaging import wake_ups
from gridq.router.sweep import BATCH_ITEMS
from gridq.store.connection import connect
from gridq.store.replies import Claim
from tests.unit.store.limits import limit
from tests.unit.store.plans import ANY, ERROR, Grid, chain, plan, step, wide
from workers.supervisor.embedded_server import EmbeddedServer

SIZES = (1_000, 10_000, 20_000)
MAX_CALL_MS = 50.0
"""The bound of the longest call."""

SLOW_CALL_MICROSECONDS = 1_000
"""Shorter calls are not looked at."""

LAYER = 100
"""The stages of a layer, each of which waits for all of the layer before."""


def run(*, sizes: Sequence[int] = SIZES, rounds: int = 2) -> list[Measurement]:
    """Return the longest call of each scenario at each size."""
    return measure_scenarios(SCENARIOS, sizes, rounds, "stages")


def measure_scenarios(
    scenarios: Sequence[Callable[[Grid, int], None]], sizes: Sequence[int], rounds: int, unit: str
) -> list[Measurement]:
    """Return the longest call of each scenario at each size, which counts `unit`."""
    found: list[Measurement] = []
    with (
        tempfile.TemporaryDirectory(prefix="gridq-bench-") as folder,
        EmbeddedServer(None) as server,
        use_environment(server.url, Path(folder), 60.0) as config,
        connect(server.url) as store,
        prioritize_server(server.pid),
    ):
        for scenario in scenarios:
            title = (scenario.__doc__ or "").partition("\n")[0].rstrip(".")
            for size in sizes:
                longest: list[tuple[float, str]] = []
                for _ in range(rounds):
                    store.flushdb()
                    grid = Grid(store, config)
                    wake_ups.write_templates(app, store, grid.keys)
                    longest.append(_find_longest_call(grid, partial(scenario, grid, size)))
                ms, name = min(longest)
                found.append(Figure(f"{title}, {size:,} {unit} ({name})", ms, "ms", MAX_CALL_MS))
                print_progress(found[-1].to_line())
    return found


def _find_longest_call(grid: Grid, act: Callable[[], object]) -> tuple[float, str]:
    """Return the time in ms of the longest call while `act` runs, and the script's or command's name."""
    names = {sha.encode(): name for name, sha in grid.scripts.shas.items()}
    for source in grid.scripts.sources.values():
        grid.client.script_load(source)
    with _log_calls(grid.client) as entries:
        act()
    longest = max(entries, key=lambda entry: entry["duration"], default=None)
    if longest is None:
        return SLOW_CALL_MICROSECONDS / 1000, "none"
    words = longest["command"].split(b" ", 2)
    name = names.get(words[1]) if len(words) > 1 else None
    return longest["duration"] / 1000, name or words[0].decode()


@contextmanager
def _log_calls(client: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the slow calls within the block, filled in at its end."""
    found: list[dict[str, Any]] = []
    client.config_set("slowlog-max-len", 200_000)
    client.slowlog_reset()
    client.config_set("slowlog-log-slower-than", SLOW_CALL_MICROSECONDS)
    yield found
    client.config_set("slowlog-log-slower-than", -1)
    found += client.slowlog_get(200_000)


# -- scenarios -----------------------------------------------------------------------------------------------


def _run_all(grid: Grid, slots: int = 1) -> None:
    """Run whatever waits, on one seat, until nothing does."""
    grid.seat(concurrency=slots)
    for slot in range(slots):
        claim = grid.claim(slot=str(slot))
        while isinstance(claim, Claim):
            claim = grid.complete(claim, go_on=True)[2]


def run_wide(grid: Grid, size: int) -> None:
    """All ready at once, joined by one."""
    job = grid.job(wide(size - 1))
    _run_all(grid)
    assert grid.ended(job).state == "done"


def run_bounded(grid: Grid, size: int) -> None:
    """All ready at once, in a queue with a bound."""
    limit(grid, f'[queues."{ANY}"]\nmax_pending = {size}')
    job = grid.job(plan(*(step() for _ in range(size))))
    _run_all(grid)
    assert grid.ended(job).state == "done"


def run_fan_out(grid: Grid, size: int) -> None:
    """One, then all others, joined by one."""
    middle = range(1, size - 1)
    job = grid.job(plan(step(), *(step(0) for _ in middle), step(*middle)))
    _run_all(grid)
    assert grid.ended(job).state == "done"


def run_chain(grid: Grid, size: int) -> None:
    """One after the other."""
    job = grid.job(chain(size))
    _run_all(grid)
    assert grid.ended(job).state == "done"


def run_layers(grid: Grid, size: int) -> None:
    """Layers of 100, each waiting for the whole layer before."""
    steps = [
        step(*range((layer - 1) * LAYER, layer * LAYER) if layer else (), refs=())
        for layer in range(size // LAYER)
        for _ in range(LAYER)
    ]
    job = grid.job(plan(*steps))
    _run_all(grid)
    assert grid.ended(job).state == "done"


def skip_wide_arm(grid: Grid, size: int) -> None:
    """An If whose other arm has all stages side by side."""
    arm = range(1, size - 2)
    steps = [step(), *(step(0) for _ in arm), step(0), step(*arm, size - 2, refs=(0, size - 2))]
    job = grid.job(plan(*steps, arms=[Arms(0, (size - 2,), tuple(arm))]))
    grid.seat()
    grid.done(grid.take(), b"true")
    _run_all(grid)
    assert grid.ended(job).state == "done"


def skip_long_arm(grid: Grid, size: int) -> None:
    """An If whose other arm is a chain."""
    last = size - 3
    steps = [step(), *(step(number) for number in range(last)), step(0), step(last, size - 2, refs=(0,))]
    job = grid.job(plan(*steps, arms=[Arms(0, (size - 2,), tuple(range(1, last + 1)))]))
    grid.seat()
    grid.done(grid.take(), b"true")
    _run_all(grid)
    assert grid.ended(job).state == "done"


def restart_scope(grid: Grid, size: int) -> None:
    """A Retry around all that starts over when all others wait."""
    inside = [*(step(scope=0) for _ in range(size - 1)), step(*range(size - 1), refs=(), scope=0)]
    counts = tuple((number, len(each.after)) for number, each in enumerate(inside))
    job = grid.job(plan(*inside, scopes=[Scope("root", None, 2, 0, counts)]))
    grid.seat()
    assert grid.fail(grid.take(), "stage") == "again"
    grid.scripts.sweep()
    _run_all(grid)
    assert grid.ended(job).state == "done"


def cancel(grid: Grid, size: int) -> None:
    """A cancel while all wait."""
    job = grid.job(plan(*(step() for _ in range(size))))
    assert grid.scripts.stop(job, "cancelled", ERROR) == "plain"
    sweep_up(grid)


def fail(grid: Grid, size: int) -> None:
    """A failure while all others wait."""
    grid.job(plan(*(step() for _ in range(size))))
    grid.seat()
    assert grid.fail(grid.take(), "stage") == "plain"
    sweep_up(grid)


def expire(grid: Grid, size: int) -> None:
    """A deadline that passes while all wait."""
    job = grid.job(plan(*(step() for _ in range(size))))
    grid.age("deadlines", job)
    sweep_up(grid)
    assert grid.ended(job).state == "expired"


def time_out(grid: Grid, size: int) -> None:
    """A queue timeout that passes while all wait."""
    job = grid.job(plan(*(step() for _ in range(size))), queue_timeout_ms=3_000_000)
    grid.age("delays", f"queue_timeout:{job}:0:0.0")
    sweep_up(grid)
    assert grid.ended(job).state == "expired"


def drop_quarantined(grid: Grid, size: int) -> None:
    """A quarantine that ends while all others wait."""
    job = grid.job(plan(*(step() for _ in range(size))))
    grid.seat()
    for _ in range(2):
        claim = grid.take()
        grid.fail(claim, "died")
    grid.seat("m.b")
    assert grid.scripts.quarantine("drop", job, 0, "root") in ("plain", "not")
    sweep_up(grid)


def cancel_running(grid: Grid, size: int) -> None:
    """A cancel while a fifth runs and the others wait."""
    job = grid.job(plan(*(step() for _ in range(size))))
    grid.seat(concurrency=size // 5)
    for slot in range(size // 5):
        grid.take(slot=str(slot))
    assert grid.scripts.stop(job, "cancelled", ERROR) == "plain"
    sweep_up(grid)


def lose_seat(grid: Grid, size: int) -> None:
    """The death of one seat that runs all."""
    grid.job(plan(*(step() for _ in range(size))))
    grid.seat(concurrency=size)
    for slot in range(size):
        grid.take(slot=str(slot))
    grid.age("seats", "m.a")
    sweep_up(grid)


def leave_seat(grid: Grid, size: int) -> None:
    """A seat that leaves while it runs all."""
    grid.job(plan(*(step() for _ in range(size))))
    grid.seat(concurrency=size)
    for slot in range(size):
        grid.take(slot=str(slot))
    assert grid.scripts.leave("m.a", "i1", "go")
    sweep_up(grid)


def return_server(grid: Grid, size: int) -> None:
    """A server that comes back while all are leased."""
    grid.job(plan(*(step() for _ in range(size))))
    grid.seat(concurrency=size)
    for slot in range(size):
        grid.take(slot=str(slot))
    grid.client.set(grid.keys("last_sweep"), grid.now() - 10_000, px=60_000)
    while grid.scripts.sweep().more:
        pass


def cancel_with_values(grid: Grid, size: int) -> None:
    """A cancel after half have written long outputs."""
    job = grid.job(plan(*(step() for _ in range(size))))
    grid.seat()
    claim: Claim | str = grid.take()
    for _ in range(size // 2):
        assert isinstance(claim, Claim)
        claim = grid.complete(claim, f"@{claim.lease}".encode(), long=b'"x"', go_on=True)[2]
    assert grid.scripts.stop(job, "cancelled", ERROR) == "plain"
    sweep_up(grid)


def sweep_up(grid: Grid) -> None:
    """Sweep until nothing is left to do."""
    while grid.sweep(BATCH_ITEMS).more:
        pass


SCENARIOS: tuple[Callable[[Grid, int], None], ...] = (
    run_wide, run_bounded, run_fan_out, run_chain, run_layers, skip_wide_arm, skip_long_arm, restart_scope,
    cancel, fail, expire, time_out, drop_quarantined, cancel_running, cancel_with_values, lose_seat,
    leave_seat, return_server,
)  # fmt: skip
"""What is measured. Each takes a fresh grid and a number of stages; its docstring names it."""
