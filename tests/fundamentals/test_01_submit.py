"""Submit a graph and wait for its answer."""

from __future__ import annotations

import gridq
from gridq.client import Client

GREETING = {
    "root": {"op": "Stage", "id": "text_template", "config": {"template": "Hello {{name}}"}},
}
"""A graph is JSON. The smallest one is a single stage; `text_template` is built in."""


def test_submit_and_wait(grid: Client) -> None:
    job = gridq.submit(GREETING, {"name": "Ada"})
    assert gridq.result(job, timeout=30) == "Hello Ada"


def test_submit_as_a_celery_task(grid: Client) -> None:
    """`run_graph` is a Celery task, so `.delay()`, groups and `AsyncResult` work as you know them."""
    assert gridq.run_graph.delay(GREETING, {"name": "Ada"}).get(timeout=30) == "Hello Ada"


def test_a_graph_combines_stages(grid: Client) -> None:
    """Operators combine stages. Once a stage is done, the next one waits in the queue of the capability that
    it needs, and any seat that serves the queue may run it.
    """
    greet = {"op": "Stage", "id": "text_template", "config": {"template": "Hello {{name}}"}}
    echo = {"op": "Stage", "id": "bench_echo"}
    join = {"op": "Stage", "id": "text_template", "config": {"template": "{{greeting}} ({{echo.name}})"}}
    both = {"op": "Parallel", "branches": {"greeting": greet, "echo": echo}}
    job = gridq.submit({"root": {"op": "Sequential", "stages": [both, join]}}, {"name": "Ada"})
    assert gridq.result(job, timeout=30) == "Hello Ada (Ada)"
    assert [row.stage for row in grid.rows(job)].count("text_template") == 2
