"""What `gridq job` says of a stage's attempts and of an error."""

from __future__ import annotations

import pytest

from gridq.cli.commands.jobs import format_attempts, format_error
from gridq.views.jobs import StageView


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((0, 0, 0, 0), ""),
        ((1, 0, 0, 0), ""),
        ((3, 0, 0, 0), "3"),
        ((1, 0, 1, 0), "1 (1 lost)"),
        ((6, 2, 1, 2), "6 (2 failed, 1 lost, 2 died)"),
    ],
)
def test_attempts_are_told_apart(counts: tuple[int, int, int, int], told: str) -> None:
    attempts, failures, losses, deaths = counts
    stage = StageView("root", "s", "q", attempts=attempts, failures=failures, losses=losses, deaths=deaths)
    assert format_attempts(stage) == told


def test_an_error_says_after_how_many() -> None:
    details = {"attempts": 4, "failures": 3, "losses": 1, "deaths": "many", "dropped_by": "ann@desk"}
    lines = format_error({"code": "stage.failed", "message": "no", "details": details})
    assert lines == [
        "error     stage.failed: no",
        "by        ann@desk",
        "after     4 attempts, 3 failures, 1 loss",
    ]
