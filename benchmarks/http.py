"""Measure the HTTP gateway against LiteLLM's proxy: throughput, latency, CPU and memory.

Both are in front of one upstream that answers at once, do the same work, and take turns round by round.
gridq's answers pass through its durable queue: gateway, server, worker. Many open streams are measured by
`benchmarks.streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import http_load
from benchmarks.bare_path import run_bare_path
from benchmarks.http_load import Sample
from benchmarks.http_sides import HttpSides, Side
from benchmarks.measure import (
    Figure,
    Measurement,
    MissingComparison,
    Ratio,
    compute_percentile,
    print_progress,
)

CONCURRENCY = 16
PROMPT = "Say it as it was said. " * 10
PACED_PROMPT = "paced {tokens} {rate}"
"""The prompt for an answer of `tokens` tokens, `rate` of them a second."""

BARE = "the same hops without any logic"

STREAM_TOKENS = 40
"""The tokens of a streamed answer whose CPU is measured."""


@dataclass(frozen=True)
class Route:
    """A way of requests through both sides: the client's API format, and the upstream's.

    `model` is the model of the requests, on gridq's side also the name of its seat. `build_request` is called
    as `http_load.build_chat_request`.
    """

    name: str
    model: str
    build_request: Callable[..., bytes]


ROUTES = (
    Route("chat", "bench", http_load.build_chat_request),
    Route("Responses as they came", "responses", http_load.build_responses_request),
    Route("Responses from a chat upstream", "translated", http_load.build_responses_request),
    Route("chat from a Messages upstream", "messages", partial(http_load.build_chat_request, max_tokens=256)),
)


def run(
    *,
    rounds: int = 3,
    seconds: float = 1.5,
    firsts: int = 40,
    litellm: bool = True,
) -> list[Measurement]:
    """Return all figures.

    For each route there are `rounds` turns of `seconds` for each side, and `firsts` streamed answers for the
    time to the first token. Without `litellm`, only gridq is measured.
    """
    seats = {route.model: CONCURRENCY for route in ROUTES}
    with HttpSides(litellm=litellm, seats=seats) as sides:
        found: list[Measurement] = []
        for route in ROUTES:
            if route is not ROUTES[0]:
                sides.start_seat(route.model)
            found += _compare_sides(sides, route, rounds, seconds)
            found += _compare_first_tokens(sides, route, firsts)
            found.append(_compare_streams(sides, route))
        return found


def _compare_sides(sides: HttpSides, route: Route, rounds: int, seconds: float) -> list[Measurement]:
    """Return the figures of whole answers on one route, and for the first one the memory of both sides."""
    both = [side for side in (sides.grid, sides.litellm) if side is not None]
    for side in both:  # warm up connections, caches and late imports
        _run_load(side, route, CONCURRENCY, seconds / 3)
    one = {side.name: Sample() for side in both}
    many = {side.name: Sample() for side in both}
    cpu = dict.fromkeys(one, 0.0)
    for number in range(rounds):
        for side in both if number % 2 == 0 else both[::-1]:
            one[side.name].add(_run_load(side, route, 1, seconds / 2))
            before = _read_cpu(sides, side, route)
            sample = _run_load(side, route, CONCURRENCY, seconds)
            used = {name: now - before[name] for name, now in _read_cpu(sides, side, route).items()}
            many[side.name].add(sample)
            cpu[side.name] += sum(used.values())
            each = ", ".join(f"{name} {took * 1e3 / len(sample.seconds):.2f}" for name, took in used.items())
            print_progress(
                f"{route.name}, {side.name}, round {number + 1} of {rounds}: {sample.per_second:.1f}/s, "
                f"CPU ms each: {each}"
            )
    names = [side.name for side in both]
    at = f"at concurrency {CONCURRENCY}"
    found = [
        _make_row(
            sides,
            f"{route.name}, requests {at}",
            [many[name].per_second for name in names],
            "requests/s",
            5,
            worst=3,
            at_most=False,
        ),
        _make_row(
            sides,
            f"{route.name}, time at concurrency 1, p50",
            [compute_percentile(one[name].seconds, 0.5) * 1e3 for name in names],
            "ms",
            0.5,
        ),
        _make_row(
            sides,
            f"{route.name}, time {at}, p99",
            [compute_percentile(many[name].seconds, 0.99) * 1e3 for name in names],
            "ms",
            0.3,
        ),
        _make_row(
            sides,
            f"{route.name}, CPU of a request {at}, gridq's server included",
            [cpu[name] * 1e3 / len(many[name].seconds) for name in names],
            "ms",
            0.4,
        ),
    ]
    if route is ROUTES[0]:
        memory = [side.memory for side in both]
        found.append(_make_row(sides, "memory of gateway, router and worker (PSS)", memory, "MB", 1.0))
    return found


def _run_load(side: Side, route: Route, connections: int, seconds: float) -> Sample:
    request = route.build_request(side.port, PROMPT, model=route.model)
    return http_load.run_closed_loop(side.port, request, connections=connections, seconds=seconds)


def _read_cpu(sides: HttpSides, side: Side, route: Route) -> dict[str, float]:
    """Return the CPU seconds used by the programs that serve `route` on `side`."""
    if side is not sides.grid:
        return side.read_cpu()
    others = {each.model for each in ROUTES if each is not route}
    others |= set() if route is ROUTES[0] else {"worker"}
    used = {**side.read_cpu(), **sides.server.read_cpu()}
    return {name: seconds for name, seconds in used.items() if name not in others}


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


def _compare_first_tokens(sides: HttpSides, route: Route, count: int) -> list[Measurement]:
    """Return the time to the first token of a streamed answer, and for the first route what gridq adds to it,
    also beside the same hops without any logic.

    The upstream sends a chunk with the role, or the first events of its format, just before the first token.
    """
    text = PACED_PROMPT.format(tokens=3, rate=50)
    both = [side for side in (sides.grid, sides.litellm) if side is not None]
    with ExitStack() as stack:
        measured = [*both, sides.upstream]
        if route is ROUTES[0]:
            port = stack.enter_context(run_bare_path(sides.config.get_broker_url(), sides.upstream.port))
            measured.append(Side(BARE, port))
        times: dict[str, list[float]] = {side.name: [] for side in measured}
        for _ in range(4):  # in turns, so that noise affects all
            for side in measured:
                request = route.build_request(side.port, text, model=route.model, stream=True)
                times[side.name] += http_load.measure_first_tokens(side.port, request, max(count // 4, 1))
    p50 = {name: compute_percentile(found, 0.5) * 1e3 for name, found in times.items()}
    each = ", ".join(f"{took:.2f} ms {name}" for name, took in p50.items())
    print_progress(f"{route.name}, first token: {each}")
    row = _make_row(
        sides, f"{route.name}, time to the first token, p50", [p50[side.name] for side in both], "ms", 1.0
    )
    if route is not ROUTES[0]:
        return [row]
    ours, bare = (p50[name] - p50[sides.upstream.name] for name in (sides.grid.name, BARE))
    name = "time to the first token beyond a direct call's, p50"
    beside = Ratio(f"{name}, beside that of the hops", ours, bare, "ms", 2, other=BARE)
    return [row, Figure(name, ours, "ms", 2), beside]


def _compare_streams(sides: HttpSides, route: Route) -> Measurement:
    """Return the CPU of a streamed token."""
    text = PACED_PROMPT.format(tokens=STREAM_TOKENS, rate=20)
    used = []
    for side in (sides.grid, sides.litellm):
        if side is not None:
            request = route.build_request(side.port, text, model=route.model, stream=True)
            before = _read_cpu(sides, side, route)
            http_load.read_streams(side.port, request, streams=CONCURRENCY, over=0.2, while_open=lambda: None)
            took = sum(_read_cpu(sides, side, route).values()) - sum(before.values())
            used.append(took * 1e3 / (CONCURRENCY * STREAM_TOKENS))
    name = f"{route.name}, CPU of a token in {CONCURRENCY} streams, gridq's server included"
    return _make_row(sides, name, used, "ms", 1.0)
