"""Load a grid through its gateway with five times its capacity for two minutes, batch and interactive mixed.

One seat of four slots runs stages of 0.2 s: 20 requests a second. Each second brings 10 interactive and 90
batch requests. A third of the batch requests has a deadline that is mostly too short. The queue is bounded,
with the policy drop-oldest-batch. The waits of interactive requests are compared with those on the idle grid,
each refusal is checked for completeness, and forecasts are compared with what happened. The environment
variable SECONDS changes the duration.
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
from benchmarks.measure import Figure, Measurement, compute_percentile, print_progress
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from gridq.submission.queue_snapshot import StageRequest
from gridq.submission.start_check import LiveForecast
from gridq.views import jobs

DURATION_SECONDS = 120.0
CONCURRENCY = 4
STAGE_SECONDS = 0.2
"""The run time of one stage: four tokens, twenty a second."""

PROMPT = "paced 4 20"
INTERACTIVE_PER_SECOND, BATCH_PER_SECOND = 10.0, 90.0
"""Together five times the capacity of four slots."""

DEADLINE_SECONDS = 1.0
"""The deadline of every third batch request."""

MAX_PENDING = 40
"""The most stages that may wait in the queue."""

DEADLINE_STATUS = 504
"""The status of a job whose deadline passed while it waited."""

MODEL, QUEUE = "busy", "llm:busy"
REFUSAL_FIELDS = ("code", "bottleneck", "capability", "position", "starts_in", "fix")
"""Fields in the body of every refusal. `starts_in` has `low`, `p50` and `high`."""


@dataclass
class Answer:
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found

    def find_missing(self) -> str:
        """Return what is missing in a refusal; empty if it is complete."""
        if self.status == DEADLINE_STATUS:  # admitted, and then overtaken by later jobs
            return ""
        if self.status not in (429, 503):
            return f"status {self.status}"
        if "retry-after" not in self.headers:
            return "retry-after"
        error = self.error
        if error["code"] == "queue.dropped":  # admitted, and then dropped
            return "" if error.get("fix") and error.get("reason") else "the reason for the drop"
        missing = [name for name in REFUSAL_FIELDS if not error.get(name)]
        if not missing and not error["starts_in"].keys() >= {"low", "p50", "high"}:
            missing = ["starts_in"]
        return ", ".join(missing)


@dataclass
class RequestResults:
    """The results of a run's requests. `forecasts` has for each: low, p50, high and the real wait, in
    seconds.
    """

    interactive: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    incomplete_refusals: Counter[str] = field(default_factory=Counter)
    forecasts: list[tuple[float, float, float, float]] = field(default_factory=list)

    def add(self, kind: str, answer: Answer) -> None:
        """Add the answer to a request of `kind`, interactive or batch."""
        if answer.status == 200:
            self.outcomes[f"{kind} answered"] += 1
            if kind == "interactive":
                self.interactive.append(answer.seconds)
            return
        missing = answer.find_missing()
        if missing:
            self.incomplete_refusals[missing] += 1
        self.outcomes[f"{kind} {answer.error.get('code')}"] += 1


def run(*, seconds: float | None = None, idle: float = 15.0) -> list[Measurement]:
    """Return the figures. `idle`: seconds for which the idle grid is measured, before and after the load."""
    seconds = float(os.environ.get("SECONDS", DURATION_SECONDS)) if seconds is None else seconds
    with HttpSides(litellm=False, seats={MODEL: CONCURRENCY}) as sides:
        sides.start_seat(MODEL)
        scripts = Scripts(connect(sides.config.broker_url.get_secret_value(), name="bench"), sides.config)
        text = f'[queues."{QUEUE}"]\nmax_pending = {MAX_PENDING}\npolicy = "drop-oldest-batch"\n'
        put_in_force(scripts, parse(text, "overload.toml"), "the benchmark")
        try:
            return asyncio.run(_measure(sides.grid.port, scripts, seconds, idle))
        finally:
            scripts.client.close()


async def _measure(port: int, scripts: Scripts, seconds: float, idle: float) -> list[Measurement]:
    alone, loaded = RequestResults(), RequestResults()
    await _send_one_by_one(port, alone, idle)  # long enough for the seat to report its run times
    await asyncio.gather(
        _send_at_random(
            INTERACTIVE_PER_SECOND, seconds, lambda number: _send_interactive(port, scripts, loaded, number)
        ),
        _send_at_random(BATCH_PER_SECOND, seconds, lambda number: _send_batch(port, loaded, number)),
    )
    await _send_one_by_one(port, alone, idle)  # before and after, because the machine's speed may change
    unloaded = compute_percentile(alone.interactive, 0.95)
    print_progress(f"unloaded: p95 {unloaded * 1e3:.0f} ms of {len(alone.interactive)}")
    for what, count in sorted(loaded.outcomes.items()):
        print_progress(f"{what}: {count:,}")
    for what, count in loaded.incomplete_refusals.items():
        print_progress(f"refusals without {what}: {count:,}")
    return make_rows(unloaded, loaded)


def make_rows(unloaded: float, loaded: RequestResults) -> list[Measurement]:
    """Return the figures of a run. `unloaded` is the p95 on the idle grid, in seconds."""
    submitted = sum(n for what, n in loaded.outcomes.items() if what.startswith("interactive"))
    no_data = [float("inf")]  # a figure without data misses its goal
    p95 = compute_percentile(loaded.interactive or no_data, 0.95)
    errors = [abs(waited - p50) for _, p50, _, waited in loaded.forecasts] or no_data
    outside = [
        not low - 0.02 <= waited <= high + 0.02 for low, _, high, waited in loaded.forecasts
    ] or no_data
    return [
        Figure(
            "interactive p95 at 5 × capacity, against 2 × unloaded and one service time",
            p95 * 1e3,
            "ms",
            (2 * unloaded + STAGE_SECONDS) * 1e3,
        ),
        Figure(
            "interactive requests that were not answered", submitted - len(loaded.interactive), "requests", 0
        ),
        Figure("incomplete refusals", sum(loaded.incomplete_refusals.values()), "refusals", 0),
        Figure(
            "interactive starts: median error of the forecast",
            compute_percentile(errors, 0.5) * 1e3,
            "ms",
            100,
        ),
        Figure(
            "interactive starts outside of the forecast's spread",
            100 * sum(outside) / len(outside),
            "%",
            20,
        ),
    ]


async def _send_one_by_one(port: int, results: RequestResults, seconds: float) -> None:
    """Send interactive requests for `seconds`, each after the answer to the one before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        results.add("interactive", await send_chat(port))


async def _send_interactive(port: int, scripts: Scripts, results: RequestResults, number: int) -> None:
    """Send one interactive request. For every tenth, also compare its start with a forecast."""
    forecast = None
    if number % 10 == 0:
        live_forecast = LiveForecast(scripts.client, scripts.keys, scripts.config.batch_age)
        forecast = await asyncio.to_thread(live_forecast.forecast, StageRequest(QUEUE))
    answer = await send_chat(port)
    results.add("interactive", answer)
    if answer.status != 200 or forecast is None or None in (forecast.low, forecast.p50, forecast.high):
        return
    job = answer.headers["x-gridq-job"]
    (row,) = await asyncio.to_thread(jobs.read_history, scripts.client, scripts.keys, job)
    results.forecasts.append(
        (forecast.low or 0.0, forecast.p50 or 0.0, forecast.high or 0.0, row.wait_ms / 1e3)
    )


async def _send_batch(port: int, results: RequestResults, number: int) -> None:
    more = {"x-gridq-priority": "batch"}
    if number % 3 == 0:
        more["x-gridq-deadline"] = f"{DEADLINE_SECONDS:g}"
    results.add("batch", await send_chat(port, more))


async def _send_at_random(rate: float, seconds: float, one: Callable[[int], Awaitable[None]]) -> None:
    """Call `one` at random times, `rate` a second on average, without waiting for earlier calls."""
    random_source, loop = random.Random(rate), asyncio.get_running_loop()
    at = begun = loop.time()
    open_: set[asyncio.Future[None]] = set()
    number = 0
    while at < begun + seconds:
        at += random_source.expovariate(rate)
        await asyncio.sleep(max(at - loop.time(), 0.0))
        number += 1
        task = asyncio.ensure_future(one(number))
        open_.add(task)
        task.add_done_callback(open_.discard)
    await asyncio.gather(*open_)


async def send_chat(port: int, more: dict[str, str] | None = None) -> Answer:
    """Send one streamed chat on its own connection, and read its answer to the end."""
    chat = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
    body = json.dumps(chat).encode()
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
