"""Measure the HTTP gateway against LiteLLM's proxy: throughput, latency and memory.

Both are in front of one upstream that answers at once, and take turns round by round. gridq's answers pass
through its durable queue: gateway, server, worker. Time to the first token and many open streams are measured
for gridq only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

from benchmarks import http_load
from benchmarks.http_load import Sample, Token
from benchmarks.http_sides import HttpSides, Side
from benchmarks.measure import (
    Figure,
    Measurement,
    MissingComparison,
    Ratio,
    compute_percentile,
    print_progress,
)
from benchmarks.sides import read_memory_mb

CONCURRENCY = 16
PROMPT = "Say it as it was said. " * 10
PACED_PROMPT = "paced {tokens} {rate}"
"""The prompt for an answer of `tokens` tokens, `rate` of them a second."""

LATE_SECONDS = 0.1
"""The delay from which a token counts as late."""


def run(
    *,
    rounds: int = 5,
    seconds: float = 3.0,
    firsts: int = 100,
    streams: int = 300,
    duration: float = 15.0,
    litellm: bool = True,
) -> list[Measurement]:
    """Return all figures.

    There are `rounds` turns of `seconds` for each side, `firsts` streamed answers for the time to the first
    token, and `streams` streams open at once for `duration` seconds. Without `litellm`, only gridq is
    measured.
    """
    with HttpSides(litellm=litellm, seats={"paced": streams}) as sides:
        return [
            *_compare_sides(sides, rounds, seconds),
            _measure_first_token(sides, firsts),
            *_measure_streams(sides, streams, duration),
        ]


def _compare_sides(sides: HttpSides, rounds: int, seconds: float) -> list[Measurement]:
    """Return the figures that compare both sides."""
    both = [side for side in (sides.grid, sides.litellm) if side is not None]
    for side in both:  # warm up connections, caches and late imports
        _run_load(side, CONCURRENCY, seconds / 3)
    one = {side.name: Sample() for side in both}
    many = {side.name: Sample() for side in both}
    for number in range(rounds):
        for side in both if number % 2 == 0 else both[::-1]:
            one[side.name].add(_run_load(side, 1, seconds / 2))
            before = sides.read_cpu(side)
            sample = _run_load(side, CONCURRENCY, seconds)
            after = sides.read_cpu(side)
            many[side.name].add(sample)
            used = ", ".join(
                f"{name} {(after[name] - before[name]) * 1e3 / len(sample.seconds):.2f}" for name in after
            )
            print_progress(
                f"{side.name}, round {number + 1} of {rounds}: {sample.per_second:.1f}/s, CPU ms each: {used}"
            )
    names = [side.name for side in both]
    at = f"at concurrency {CONCURRENCY}"
    return [
        _make_row(
            sides,
            f"requests {at}",
            [many[name].per_second for name in names],
            "requests/s",
            5,
            worst=3,
            at_most=False,
        ),
        _make_row(
            sides,
            "time at concurrency 1, p50",
            [compute_percentile(one[name].seconds, 0.5) * 1e3 for name in names],
            "ms",
            0.5,
        ),
        _make_row(
            sides,
            f"time {at}, p99",
            [compute_percentile(many[name].seconds, 0.99) * 1e3 for name in names],
            "ms",
            0.3,
        ),
        _make_row(
            sides, "memory of gateway, router and worker (PSS)", [side.memory for side in both], "MB", 1.0
        ),
    ]


def _run_load(side: Side, connections: int, seconds: float) -> Sample:
    request = http_load.build_chat_request(side.port, PROMPT)
    return http_load.run_closed_loop(side.port, request, connections=connections, seconds=seconds)


def _make_row(
    sides: HttpSides,
    name: str,
    values: Sequence[float],
    unit: str,
    goal: float,
    *,
    worst: float | None = None,
    at_most: bool = True,
) -> Measurement:
    """Return gridq's value compared with LiteLLM's, or alone if there is no LiteLLM."""
    theirs = values[1] if len(values) > 1 else 1.0
    other = sides.litellm.name if sides.litellm else "LiteLLM"
    ratio = Ratio(name, values[0], theirs, unit, goal, at_most, worst, other)
    return (
        ratio
        if sides.litellm
        else MissingComparison(name, values[0], unit, ratio.goal_text, sides.missing_reason)
    )


def _measure_first_token(sides: HttpSides, count: int) -> Measurement:
    """Return how much gridq adds to the time to the first token of a streamed answer."""
    text = PACED_PROMPT.format(tokens=3, rate=50)
    times: dict[int, list[float]] = {sides.grid.port: [], sides.upstream.port: []}
    for _ in range(4):  # in turns, so that noise affects both
        for port in times:
            request = http_load.build_chat_request(port, text, stream=True)
            times[port] += http_load.measure_first_tokens(port, request, max(count // 4, 1))
    through, direct = (compute_percentile(found, 0.5) * 1e3 for found in times.values())
    print_progress(f"first token: {through:.2f} ms through gridq, {direct:.2f} ms direct")
    return Figure("time to the first token beyond a direct call's, p50", through - direct, "ms", 12)


def _measure_streams(sides: HttpSides, streams: int, duration: float) -> list[Measurement]:
    """Return the figures of many streams on one gateway, at 5 tokens a second each."""
    sides.start_seat("paced")
    rate, over = 5, streams / 100
    text = PACED_PROMPT.format(tokens=round((over + duration) * rate), rate=rate)
    gateway = sides.grid.pids["gateway"]
    memory = [read_memory_mb(gateway)]
    before, began = sides.read_cpu(sides.grid), time.monotonic()
    found = http_load.read_streams(
        sides.grid.port,
        http_load.build_chat_request(sides.grid.port, text, model="paced", stream=True),
        streams=streams,
        over=over,
        while_open=lambda: memory.append(read_memory_mb(gateway)),
    )
    after, lasted = sides.read_cpu(sides.grid), time.monotonic() - began
    late = compute_delays(found)
    used = ", ".join(f"{name} {(after[name] - before[name]) * 100 / lasted:.0f} %" for name in after)
    p50, p99, most = (
        compute_percentile(late, 0.5) * 1e3,
        compute_percentile(late, 0.99) * 1e3,
        max(late) * 1e3,
    )
    print_progress(f"{streams} streams: {p50:.1f} ms late, p99 {p99:.1f}, most {most:.1f}; of a core: {used}")
    each = int(text.split()[1])
    at = f"{streams} streams at {rate} tokens/s"
    return [
        Figure(f"{at}, memory of the gateway (RSS)", max(memory), "MB", 250),
        Figure(
            f"{at}, tokens {LATE_SECONDS * 1e3:.0f} ms late or more", compute_late_share(late) * 100, "%", 1
        ),
        Figure(
            f"{at}, tokens lost or double of {streams * each:,}", count_wrong_tokens(found, each), "tokens", 0
        ),
    ]


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


def compute_late_share(late: Sequence[float]) -> float:
    """Return the share (0 to 1) of tokens with a delay of LATE_SECONDS or more."""
    return sum(each >= LATE_SECONDS for each in late) / len(late)
