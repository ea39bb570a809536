"""Measure jobs of one stage, the smallest ones, against one Celery task."""

from __future__ import annotations

from benchmarks.bare_app import echo
from benchmarks.measure import Measurement, Ratio, alternate
from benchmarks.sides import Sides, make_echo_node

VALUE = {"text": "x" * 200}


def run(sides: Sides, *, singles: int = 250, many: int = 2000, rounds: int = 3) -> list[Measurement]:
    """Return the time from submit to answer, and the throughput of many jobs at once, by client and by
    router.
    """
    graph = {"root": make_echo_node()}

    def client() -> None:
        assert sides.client.result(sides.submit(graph, VALUE), 60) == VALUE

    def router() -> None:
        assert sides.run_graph(graph, VALUE).get(timeout=60) == VALUE

    def bare() -> None:
        assert echo.delay(VALUE).get(timeout=60) == VALUE

    def clients() -> None:
        jobs = [sides.submit(graph, VALUE) for _ in range(many)]
        for job in jobs:
            assert sides.client.result(job, 120) == VALUE

    def routers() -> None:
        results = [sides.run_graph(graph, VALUE) for _ in range(many)]
        for result in results:
            assert result.get(timeout=120) == VALUE

    def bares() -> None:
        results = [echo.delay(VALUE) for _ in range(many)]
        for result in results:
            assert result.get(timeout=120) == VALUE

    for warm in (client, router, bare) * 3:
        warm()
    client_s, router_s, bare_s = (seconds * 1e3 for seconds in alternate(singles, client, router, bare))
    clients_s, routers_s, bares_s = (many / seconds for seconds in alternate(rounds, clients, routers, bares))
    at_once = f"one-stage jobs, {many} at once"
    return [
        Ratio("one-stage job by submit, time", client_s, bare_s, "ms", 1.2),
        Ratio("one-stage job by run_graph.delay, time", router_s, bare_s, "ms", 2.2, worst=2.5),
        Ratio(f"{at_once} by submit, throughput", clients_s, bares_s, "jobs/s", 1.3, at_most=False),
        Ratio(
            f"{at_once} by run_graph.delay, throughput",
            routers_s,
            bares_s,
            "jobs/s",
            0.45,
            at_most=False,
            worst=0.4,
        ),
    ]
