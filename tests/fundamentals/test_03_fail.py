"""Handle a job that fails."""

from __future__ import annotations

import pytest

import gridq
from gridq.client import Client
from gridq.errors import StageError, UnknownStage


def test_a_failed_stage_raises_its_error(grid: Client) -> None:
    """Every error is a GridError with a stable code; its details say which stage failed, where and why."""
    job = gridq.submit({"root": {"op": "Stage", "id": "parse_json"}}, "not JSON")
    with pytest.raises(StageError) as failed:
        gridq.result(job, timeout=30)
    assert failed.value.code == "stage.failed"
    assert failed.value.details["path"] == "root"


def test_a_wrong_graph_is_refused_at_once(grid: Client) -> None:
    """None of its stages runs, and the error says where the mistake is and how to fix it."""
    with pytest.raises(UnknownStage) as refused:
        gridq.submit({"root": {"op": "Stage", "id": "parse_jsn"}}, "{}")
    assert refused.value.code == "stage.not_found"
    assert refused.value.details["path"] == "root"
    assert refused.value.fix.startswith("use 'parse_json' or 'format_json'")
