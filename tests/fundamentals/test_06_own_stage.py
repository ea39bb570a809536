"""Write a stage of your own."""

from __future__ import annotations

import gridq
from gridq.client import Client


def test_a_python_function_is_a_stage(grid: Client) -> None:
    """In `own_stages.py`, the decorator `@stage` makes a function a stage of the same name. A machine that
    imports the module offers its stages to the whole grid, and the seat `local` of that machine runs them.
    """
    job = gridq.submit({"root": {"op": "Stage", "id": "shout"}}, "hello")
    assert gridq.result(job, timeout=30) == "HELLO"
    (row,) = grid.rows(job)
    assert row.worker.startswith("local@")
