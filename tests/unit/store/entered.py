"""What the ledger of a grid under test has."""

from __future__ import annotations

from gridq.limits import ledger
from gridq.limits.ledger import Entry
from gridq.limits.ledger_verification import verify
from tests.unit.store.plans import Grid

TEAM = '[teams.t]\nmonthly_dollars = 1\n[agents.ann]\nteam = "t"\n'
"""Limits under which an agent and its team are counted."""


def entered(grid: Grid, *kinds: str) -> list[Entry]:
    """The entries of some kinds; of attempts where none is named."""
    return [
        one for one in ledger.read_entries(grid.client, grid.keys) if one.what in (kinds or ledger.ATTEMPTS)
    ]


def agrees(grid: Grid) -> None:
    """The counters are what the entries come to."""
    found = verify(grid.client, grid.keys)
    assert found.differences == ()
    assert found.notes == ()
