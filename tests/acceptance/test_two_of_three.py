"""Two healthy seats of three: no request fails for the third, however it fails. `make endpoints` sends
10,000.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.endpoints.trial import FAILURES, is_cut_stream, run_trial

REQUESTS = 40 * len(FAILURES)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_request_fails_for_the_third_seat(tmp_path: Path) -> None:
    trial = run_trial(REQUESTS, tmp_path, within=240)
    print(trial.to_json())
    assert trial.list_failed() == {}
    assert not [check for check in trial.audit.checks if check.breaches]
    assert len(trial.replies) == REQUESTS
    assert all(reply.answered or is_cut_stream(reply) for reply in trial.replies)
    # Each endpoint that can be called was, and failed; each answer is on the bill once.
    assert {f"m3.{name}" for name in FAILURES if name != "dead"} <= trial.calls.keys()
    assert trial.audit.billed >= sum(reply.answered for reply in trial.replies)
