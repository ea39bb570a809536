"""A pipe of stages, each waiting for the one before: what a hop from worker to worker costs."""

from __future__ import annotations

from celery import chain

from benchmarks.bare_app import echo
from benchmarks.measure import Measured, Ratio, alternate
from benchmarks.sides import Sides, echo_stage

GOALS = {1: 0.6, 100: 0.4}
"""Payload in KB, and the share of the canvas's time per hop that is allowed."""


def run(sides: Sides, *, hops: int = 100, rounds: int = 9) -> list[Measured]:
    """The time per hop at each payload."""
    graph = {"root": {"op": "Sequential", "stages": [echo_stage()] * hops}}
    found: list[Measured] = []
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
