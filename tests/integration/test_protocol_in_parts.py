"""The protocol model holds as well if a call does only a small part of the work for a job.

It has a file of its own, so that another process runs it beside the model with whole calls.
"""

from __future__ import annotations

import itertools

import pytest

from gridq.store import scripts
from tests import machines
from tests.conftest import GridEnv
from tests.integration.test_protocol_model import Protocol


@pytest.mark.timeout(600)  # to shrink what it finds takes longer
@pytest.mark.parametrize(("walk", "words"), [(1, 40), (25, 100)])
def test_any_order_of_calls_that_do_a_part(
    grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch, walk: int, words: int
) -> None:
    """Each stage is recorded once, the sums are right, and every step is in one place."""
    monkeypatch.setattr(scripts, "MAX_WALK", walk)
    monkeypatch.setattr(scripts, "PLAN_PART_WORDS", words)
    numbers = itertools.count()
    machines.run(lambda: Protocol(grid_env, next(numbers)), runs=50)
