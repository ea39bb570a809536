"""Survive a seat that fails."""

from __future__ import annotations

import secrets

import pytest

import gridq
from gridq.client import Client
from gridq.errors import StageError


def test_a_stage_is_retried_after_a_failure_of_its_seat(grid: Client) -> None:
    """You need to do nothing: an unreachable endpoint or a dead worker costs an attempt, not the job. A
    stage's own error is not retried, because it would fail again.
    """
    twice = {"times": 2, "key": secrets.token_hex(4)}
    job = gridq.submit({"root": {"op": "Stage", "id": "bench_seat_fail"}}, twice)
    assert gridq.result(job, timeout=30) == twice
    *failed, done = grid.rows(job)
    assert [row.state for row in failed] == ["failed", "failed"]
    assert (done.state, done.attempt) == ("done", 3)


def test_the_operator_retry_runs_a_part_again(grid: Client) -> None:
    """The operator Retry runs a part of the graph again when it fails, for whatever reason."""
    graph = {"root": {"op": "Retry", "max_attempts": 3, "stage": {"op": "Stage", "id": "bench_fail"}}}
    job = gridq.submit(graph, {"message": "never"})
    with pytest.raises(StageError):
        gridq.result(job, timeout=30)
    assert [row.state for row in grid.rows(job)] == ["failed"] * 3
