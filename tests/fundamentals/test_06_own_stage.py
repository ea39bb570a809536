"""Write a stage of your own."""

from __future__ import annotations

import gridq
from gridq.client import Client


def test_a_python_function_is_a_stage(grid: Client) -> None:
    """`own_stages.py` has a function with `@stage`. The machine that imports the module offers it to the
    whole grid under its name, and its seat `local` runs it.
    """
    job = gridq.submit({"root": {"op": "Stage", "id": "shout"}}, "hello")
    assert gridq.result(job, timeout=30) == "HELLO"
    (row,) = grid.rows(job)
    assert row.worker.startswith("local@")
