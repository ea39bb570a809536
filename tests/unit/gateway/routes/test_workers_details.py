"""Whoever may not see everybody's jobs does not see who uses a device either."""

from __future__ import annotations

import pytest

from gridq.gateway.routes.workers import make_worker_record
from gridq.seats.registry import LiveSeat


@pytest.mark.parametrize("sees_all", [True, False])
def test_details_are_for_those_who_see_all_jobs(sees_all: bool) -> None:
    details = {"models": [{"name": "m", "agent": "ann"}]}
    seat = LiveSeat(
        seat="m.gpu0", machine="m", worker="gpu0@m", incarnation="1", kind="gpu", concurrency=1, queues=[],
        details=details, metrics={"gpu_seconds_total": 1.0},
    )  # fmt: skip
    record = make_worker_record(seat, 3000, sees_all=sees_all)
    assert record["details"] == (details if sees_all else {})
    assert record["metrics"] == {"gpu_seconds_total": 1.0}
