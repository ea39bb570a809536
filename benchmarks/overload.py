"""Five times what a grid can do, for two minutes, batch and interactive mixed, through the HTTP door.

One seat of four slots, each stage a fifth of a second: 20 requests a second. Ten interactive ones come in a
second and ninety batch ones, a third of which asks for a deadline that is mostly out of reach; the queue has
a bound and the policy drop-oldest-batch. What interactive callers wait is compared with what they wait on
the idle grid, every refusal is read for what it must say, and what was foretold with what then happened.
SECONDS in the environment changes the length.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.http_load import HOST
from benchmarks.http_sides import HttpSides
from benchmarks.measure import Figure, Measured, percentile, tell
from gridq.limits.enforcement import put_in_force
from gridq.limits.quotas_file import parse
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from gridq.submission.live_forecast import LiveForecast
from gridq.submission.queue_snapshot import StageRequest
from gridq.views import jobs

SECONDS = 120.0
CONCURRENCY = 4
SERVICE = 0.2
"""Seconds of one stage: four tokens, twenty a second."""

PROMPT = "paced 4 20"
INTERACTIVE, BATCH = 10.0, 90.0
"""Requests a second: together five times what four slots can do."""

DEADLINE = 1.0
"""Seconds that every third batch request gives itself."""

BOUND = 40
"""Stages that may stand in the queue."""

LATE = 504
"""The status of a job whose deadline passed while it waited."""

MODEL, QUEUE = "busy", "llm:busy"
TOLD = ("code", "bottleneck", "capability", "position", "starts_in", "fix")
"""What the body of every refusal says; `starts_in` with `low`, `p50` and `high`."""


@dataclass
class Answer:
    """How one request went."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found

    def dishonest(self) -> str:
        """What a refusal does not say, empty where it says everything."""
        if self.status == LATE:  # it was admitted, and what came later went before it
            return ""
        if self.status not in (429, 503):
            return f"status {self.status}"
        if "retry-after" not in self.headers:
            return "retry-after"
        error = self.error
        if error["code"] == "queue.dropped":  # it was admitted, and gave way
            return "" if error.get("fix") and error.get("reason") else "why it gave way"
        missing = [name for name in TOLD if not error.get(name)]
        if not missing and not error["starts_in"].keys() >= {"low", "p50", "high"}:
            missing = ["starts_in"]
        return ", ".join(missing)


@dataclass
class Tally:
    """What came of the requests of a run."""

    interactive: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    dishonest: Counter[str] = field(default_factory=Counter)
    foretold: list[tuple[float, float, float, float]] = field(default_factory=list)

    def note(self, kind: str, answer: Answer) -> None:
        """One answer to a request of a kind: interactive or batch."""
        if answer.status == 200:
            self.outcomes[f"{kind} answered"] += 1
            if kind == "interactive":
                self.interactive.append(answer.seconds)
            return
        lacks = answer.dishonest()
        if lacks:
            self.dishonest[lacks] += 1
        self.outcomes[f"{kind} {answer.error.get('code')}"] += 1


def run(*, seconds: float | None = None, idle: float = 15.0) -> list[Measured]:
    """The rows. `idle`: seconds for which the unloaded grid is measured before, and again afterwards."""
    seconds = float(os.environ.get("SECONDS", SECONDS)) if seconds is None else seconds
    with HttpSides(litellm=False, seats={MODEL: CONCURRENCY}) as sides:
        sides.start_seat(MODEL)
        scripts = Scripts(connect(sides.config.broker_url.get_secret_value(), name="bench"), sides.config)
        text = f'[queues."{QUEUE}"]\nmax_pending = {BOUND}\npolicy = "drop-oldest-batch"\n'
        put_in_force(scripts, parse(text, "overload.toml"), "the benchmark")
        try:
            return asyncio.run(_measure(sides.grid.port, scripts, seconds, idle))
        finally:
            scripts.client.close()


async def _measure(port: int, scripts: Scripts, seconds: float, idle: float) -> list[Measured]:
    alone, loaded = Tally(), Tally()
    await _one_by_one(port, alone, idle)  # long enough for the seat to tell how long its stages take
    await asyncio.gather(
        _arrivals(INTERACTIVE, seconds, lambda number: _interactive(port, scripts, loaded, number)),
        _arrivals(BATCH, seconds, lambda number: _batch(port, loaded, number)),
    )
    await _one_by_one(port, alone, idle)  # before and after: the machine may have had more to do meanwhile
    unloaded = percentile(alone.interactive, 0.95)
    tell(f"unloaded: p95 {unloaded * 1e3:.0f} ms of {len(alone.interactive)}")
    for what, count in sorted(loaded.outcomes.items()):
        tell(f"{what}: {count:,}")
    for what, count in loaded.dishonest.items():
        tell(f"a refusal lacks {what}: {count:,}")
    return rows(unloaded, loaded)


def rows(unloaded: float, loaded: Tally) -> list[Measured]:
    """The figures of a run, `unloaded` being the p95 on the idle grid, in seconds."""
    answered = len(loaded.interactive)
    asked = sum(n for what, n in loaded.outcomes.items() if what.startswith("interactive"))
    none = [float("inf")]  # what was not seen is no goal that was met
    off = [abs(waited - p50) for _, p50, _, waited in loaded.foretold] or none
    outside = [not low - 0.02 <= waited <= high + 0.02 for low, _, high, waited in loaded.foretold] or none
    return [
        Figure(
            "interactive p95 at 5 × capacity, against 2 × unloaded and one service time",
            percentile(loaded.interactive or none, 0.95) * 1e3, "ms", (2 * unloaded + SERVICE) * 1e3,
        ),
        Figure("interactive requests that were not answered", asked - answered, "requests", 0),
        Figure(
            "refusals that do not say everything", sum(loaded.dishonest.values()), "refusals", 0,
        ),
        Figure("interactive starts: median error of the forecast", percentile(off, 0.5) * 1e3, "ms", 100),
        Figure(
            "interactive starts outside of the forecast's spread", 100 * sum(outside) / len(outside), "%", 20,
        ),
    ]  # fmt: skip


async def _one_by_one(port: int, tally: Tally, seconds: float) -> None:
    """Interactive requests, each when the one before is answered."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tally.note("interactive", await ask(port))


async def _interactive(port: int, scripts: Scripts, tally: Tally, number: int) -> None:
    """One interactive request; of every tenth it is foretold when it starts."""
    told = None
    if number % 10 == 0:
        live_forecast = LiveForecast(scripts.client, scripts.keys, scripts.config.batch_age)
        told = await asyncio.to_thread(live_forecast.forecast, StageRequest(QUEUE))
    answer = await ask(port)
    tally.note("interactive", answer)
    if answer.status != 200 or told is None or None in (told.low, told.p50, told.high):
        return
    job = answer.headers["x-gridq-job"]
    (row,) = await asyncio.to_thread(jobs.read_history, scripts.client, scripts.keys, job)
    tally.foretold.append((told.low or 0.0, told.p50 or 0.0, told.high or 0.0, row.wait_ms / 1e3))


async def _batch(port: int, tally: Tally, number: int) -> None:
    more = {"x-gridq-priority": "batch"}
    if number % 3 == 0:
        more["x-gridq-deadline"] = f"{DEADLINE:g}"
    tally.note("batch", await ask(port, more))


async def _arrivals(rate: float, seconds: float, one: Callable[[int], Awaitable[None]]) -> None:
    """Start `one` at random instants, `rate` a second, whatever became of those before."""
    dice, loop = random.Random(rate), asyncio.get_running_loop()
    at = begun = loop.time()
    open_: set[asyncio.Future[None]] = set()
    number = 0
    while at < begun + seconds:
        at += dice.expovariate(rate)
        await asyncio.sleep(max(at - loop.time(), 0.0))
        number += 1
        task = asyncio.ensure_future(one(number))
        open_.add(task)
        task.add_done_callback(open_.discard)
    await asyncio.gather(*open_)


async def ask(port: int, more: dict[str, str] | None = None) -> Answer:
    """One streamed chat over a connection of its own, to its end."""
    asked = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
    body = json.dumps(asked).encode()
    about = {
        "host": f"{HOST}:{port}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **(more or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in about.items())
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Answer(int(first.split()[1]), headers, rest, time.perf_counter() - began)
