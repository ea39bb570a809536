"""The HTTP gateway beside LiteLLM's proxy: requests a second, times, memory; first tokens; many streams.

Both stand before one upstream that takes no time to think, and take turns, round by round. gridq's answers go
through its durable queue: gateway, server, worker. The first tokens and the streams are gridq's alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

from benchmarks import http_load
from benchmarks.http_load import Sample, Token
from benchmarks.http_sides import HttpSides, Side
from benchmarks.measure import Figure, Measured, Ratio, Unmeasured, percentile, tell
from benchmarks.sides import memory_of

AT_ONCE = 16
PROMPT = "Say it as it was said. " * 10
PACED = "paced {tokens} {rate}"
"""What the upstream takes for an order: so many tokens, so many a second."""

LATE = 0.1
"""Seconds after which a token counts as late."""


def run(
    *,
    rounds: int = 5,
    seconds: float = 3.0,
    firsts: int = 100,
    streams: int = 300,
    held: float = 15.0,
    litellm: bool = True,
) -> list[Measured]:
    """All rows. `rounds` turns of `seconds` for each side; `firsts` streamed answers for the time to the
    first token; `streams` open at once for `held` seconds. Without `litellm` gridq is measured alone.
    """
    with HttpSides(litellm=litellm, seats={"paced": streams}) as sides:
        return [*_beside(sides, rounds, seconds), _first(sides, firsts), *_many(sides, streams, held)]


def _beside(sides: HttpSides, rounds: int, seconds: float) -> list[Measured]:
    """The rows of both sides."""
    both = [side for side in (sides.grid, sides.litellm) if side is not None]
    for side in both:  # warm: connections, caches, what is imported late
        _load(side, AT_ONCE, seconds / 3)
    one = {side.name: Sample() for side in both}
    many = {side.name: Sample() for side in both}
    for number in range(rounds):
        for side in both if number % 2 == 0 else both[::-1]:
            one[side.name].add(_load(side, 1, seconds / 2))
            before = sides.cpu(side)
            sample = _load(side, AT_ONCE, seconds)
            after = sides.cpu(side)
            many[side.name].add(sample)
            used = ", ".join(
                f"{name} {(after[name] - before[name]) * 1e3 / len(sample.seconds):.2f}" for name in after
            )
            tell(
                f"{side.name}, round {number + 1} of {rounds}: {sample.per_second:.1f}/s, CPU ms each: {used}"
            )
    names = [side.name for side in both]
    at = f"at concurrency {AT_ONCE}"
    return [
        _row(
            sides,
            f"requests {at}",
            [many[name].per_second for name in names],
            "requests/s",
            5,
            worst=3,
            at_most=False,
        ),
        _row(
            sides,
            "time at concurrency 1, p50",
            [percentile(one[name].seconds, 0.5) * 1e3 for name in names],
            "ms",
            0.5,
        ),
        _row(
            sides,
            f"time {at}, p99",
            [percentile(many[name].seconds, 0.99) * 1e3 for name in names],
            "ms",
            0.3,
        ),
        _row(sides, "memory of gateway, router and worker (PSS)", [side.memory for side in both], "MB", 1.0),
    ]


def _load(side: Side, connections: int, seconds: float) -> Sample:
    request = http_load.chat(side.port, PROMPT)
    return http_load.closed_loop(side.port, request, connections=connections, seconds=seconds)


def _row(
    sides: HttpSides,
    name: str,
    values: Sequence[float],
    unit: str,
    goal: float,
    *,
    worst: float | None = None,
    at_most: bool = True,
) -> Measured:
    """gridq's value beside LiteLLM's, or alone where there is none."""
    theirs = values[1] if len(values) > 1 else 1.0
    other = sides.litellm.name if sides.litellm else "LiteLLM"
    ratio = Ratio(name, values[0], theirs, unit, goal, at_most, worst, other)
    return ratio if sides.litellm else Unmeasured(name, values[0], unit, ratio.goal_text, sides.without)


def _first(sides: HttpSides, count: int) -> Measured:
    """What gridq adds to the time to the first token of a streamed answer."""
    text = PACED.format(tokens=3, rate=50)
    times: dict[int, list[float]] = {sides.grid.port: [], sides.upstream.port: []}
    for _ in range(4):  # turns: what disturbs the machine disturbs both
        for port in times:
            request = http_load.chat(port, text, stream=True)
            times[port] += http_load.first_tokens(port, request, max(count // 4, 1))
    through, direct = (percentile(found, 0.5) * 1e3 for found in times.values())
    tell(f"first token: {through:.2f} ms through gridq, {direct:.2f} ms direct")
    return Figure("time to the first token beyond a direct call's, p50", through - direct, "ms", 12)


def _many(sides: HttpSides, streams: int, held: float) -> list[Measured]:
    """Many streams at 5 tokens a second each, on one gateway."""
    sides.start_seat("paced")
    rate, over = 5, streams / 100
    text = PACED.format(tokens=round((over + held) * rate), rate=rate)
    gateway = sides.grid.pids["gateway"]
    memory = [memory_of(gateway)]
    before, began = sides.cpu(sides.grid), time.monotonic()
    found = http_load.open_streams(
        sides.grid.port,
        http_load.chat(sides.grid.port, text, model="paced", stream=True),
        streams=streams,
        over=over,
        while_open=lambda: memory.append(memory_of(gateway)),
    )
    after, lasted = sides.cpu(sides.grid), time.monotonic() - began
    late = lateness(found)
    used = ", ".join(f"{name} {(after[name] - before[name]) * 100 / lasted:.0f} %" for name in after)
    p50, p99, most = percentile(late, 0.5) * 1e3, percentile(late, 0.99) * 1e3, max(late) * 1e3
    tell(f"{streams} streams: {p50:.1f} ms late, p99 {p99:.1f}, most {most:.1f}; of a core: {used}")
    each = int(text.split()[1])
    at = f"{streams} streams at {rate} tokens/s"
    return [
        Figure(f"{at}, memory of the gateway (RSS)", max(memory), "MB", 250),
        Figure(f"{at}, tokens {LATE * 1e3:.0f} ms late or more", share_late(late) * 100, "%", 1),
        Figure(f"{at}, tokens lost or double of {streams * each:,}", amiss(found, each), "tokens", 0),
    ]


def lateness(streams: Sequence[Sequence[Token]]) -> list[float]:
    """Seconds from upstream to reader of each token that was sent while all the streams were open.

    RuntimeError: they never were.
    """
    opened = max(tokens[0].sent for tokens in streams)
    ended = min(tokens[-1].sent for tokens in streams)
    if ended < opened:
        raise RuntimeError("the first stream ended before the last had begun")
    return [token.late for token in chain(*streams) if opened <= token.sent <= ended]


def amiss(streams: Sequence[Sequence[Token]], each: int) -> int:
    """How many tokens are lost, and how many came again, of streams of `each` tokens."""
    different = [len({token.sent for token in tokens}) for tokens in streams]
    return sum(abs(each - count) for count in different) + sum(map(len, streams)) - sum(different)


def share_late(late: Sequence[float]) -> float:
    """The share, 0 to 1, of tokens that come LATE or later."""
    return sum(each >= LATE for each in late) / len(late)
