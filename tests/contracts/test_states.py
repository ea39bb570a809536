"""The states, their meanings and transitions, and the page that shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gridq.protocol import states
from gridq.store.scripts import NAMES

ROOT = Path(__file__).parents[2]

KINDS = [
    (states.JobState, states.JOBS, states.JOB_MOVES),
    (states.StageState, states.STAGES, states.STAGE_MOVES),
    (states.AttemptState, states.ATTEMPTS, states.ATTEMPT_MOVES),
]


def test_the_document_is_the_one_that_the_tables_make() -> None:
    made = subprocess.run(
        [sys.executable, "docs/state_diagram.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs" / "reference" / "states.md").read_text() == made, "run `make states`"


@pytest.mark.parametrize("kind", KINDS, ids=["jobs", "stages", "attempts"])
def test_every_state_has_a_meaning_and_is_reached_by_scripts_that_there_are(kind: tuple) -> None:
    members, meanings, moves = kind
    assert set(meanings) == set(members)
    assert {after for _, after in moves} == set(members)
    assert {script for scripts in moves.values() for script in scripts} <= set(NAMES)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=["jobs", "attempts"])
def test_nothing_leaves_a_final_state(kind: tuple) -> None:
    members, _, moves = kind
    assert {state for state in members if state.is_final} == set(members) - {before for before, _ in moves}
