"""Agents of a chaos run judge the answers to their calls."""

from __future__ import annotations

import pytest

from gridq.errors import AgentMoneyExceeded, DeadlineUnreachable, GridError
from tests.chaos.agents import SubmittedJob
from tests.chaos.graphs import ExpectedOutcome, GeneratedGraph
from tests.chaos.plan import Job

POOR, LATE = AgentMoneyExceeded("none left"), DeadlineUnreachable("too late")


@pytest.mark.parametrize("error", [POOR, LATE])
def test_an_allowed_refusal_is_accepted_once_on_submit(error: GridError) -> None:
    job = Job(
        "j", GeneratedGraph({}, None, ExpectedOutcome(), {}), {}, 0.0, allowed_errors=frozenset({error.code})
    )
    state = SubmittedJob(job)
    state.record_error("submit", error)
    assert (state.refused, state.wrong) == (error.code, [])
    # One that was accepted is the same job when it comes again, and no other call may fail so.
    for what, accepted in (("submit", True), ("cancel", False)):
        state = SubmittedJob(job, accepted=accepted)
        state.record_error(what, error)
        assert state.refused == ""
        assert state.wrong == [f"{what} of j: {error}"]


def test_a_refusal_that_is_not_allowed_is_a_breach() -> None:
    state = SubmittedJob(
        Job(
            "j",
            GeneratedGraph({}, None, ExpectedOutcome(), {}),
            {},
            0.0,
            allowed_errors=frozenset({POOR.code}),
        )
    )
    state.record_error("submit", LATE)
    assert state.refused == ""
    assert LATE.code in state.wrong[0]
