"""What the agents of a chaos run make of an answer to their calls."""

from __future__ import annotations

import pytest

from gridq.errors import AgentMoneyExceeded, DeadlineUnreachable, GridError
from tests.chaos.agents import SubmittedJob
from tests.chaos.graphs import ExpectedOutcome, GeneratedGraph
from tests.chaos.plan import Job

POOR, LATE = AgentMoneyExceeded("none left"), DeadlineUnreachable("too late")


@pytest.mark.parametrize("error", [POOR, LATE])
def test_a_job_that_may_be_refused_may_be_so_once_at_the_door(error: GridError) -> None:
    job = Job(
        "j", GeneratedGraph({}, None, ExpectedOutcome(), {}), {}, 0.0, allowed_errors=frozenset({error.code})
    )
    state = SubmittedJob(job)
    state.refuse("submit", error)
    assert (state.refused, state.wrong) == (error.code, [])
    # One that was accepted is the same job when it comes again, and no other call may fail so.
    for what, accepted in (("submit", True), ("cancel", False)):
        state = SubmittedJob(job, accepted=accepted)
        state.refuse(what, error)
        assert state.refused == ""
        assert state.wrong == [f"{what} of j: {error}"]


def test_one_that_may_not_is_a_breach() -> None:
    state = SubmittedJob(
        Job(
            "j",
            GeneratedGraph({}, None, ExpectedOutcome(), {}),
            {},
            0.0,
            allowed_errors=frozenset({POOR.code}),
        )
    )
    state.refuse("submit", LATE)
    assert state.refused == ""
    assert LATE.code in state.wrong[0]
