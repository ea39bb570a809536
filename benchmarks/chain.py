"""Measure one hop from stage to stage in a long sequence, against a Celery chain."""

from __future__ import annotations

from celery import chain

from benchmarks.bare_app import echo
from benchmarks.measure import Measurement, Ratio, alternate
from benchmarks.sides import Sides, make_echo_node

GOALS = {1: 0.6, 100: 0.4}
"""The highest allowed ratio of gridq's time per hop to Celery's, by payload in KB."""


def run(sides: Sides, *, hops: int = 100, rounds: int = 9) -> list[Measurement]:
    """Return the time per hop for each payload."""
    graph = {"root": {"op": "Sequential", "stages": [make_echo_node()] * hops}}
    found: list[Measurement] = []
    for kilobytes, goal in GOALS.items():
        payload = "x" * (kilobytes * 1024)

        def ours(payload: str = payload) -> None:
            assert sides.client.result(sides.submit(graph, payload), 120) == payload

        def theirs(payload: str = payload) -> None:
            first, *rest = [echo.s(payload), *(echo.s() for _ in range(hops - 1))]
            assert chain(first, *rest)().get(timeout=120) == payload

        ours()
        theirs()
        ours_s, theirs_s = alternate(rounds, ours, theirs)
        name = f"chain of {hops} stages, {kilobytes} KB, time per hop"
        found.append(Ratio(name, ours_s / hops * 1e3, theirs_s / hops * 1e3, "ms", goal))
    return found
