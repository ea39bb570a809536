"""Entries of the ledger of a grid under test."""

from __future__ import annotations

from gridq.limits import ledger
from gridq.limits.ledger import Entry
from gridq.limits.ledger_verification import verify
from tests.unit.store.plans import Grid

TEAM = '[teams.t]\nmonthly_dollars = 1\n[agents.ann]\nteam = "t"\n'
"""Limits under which an agent and its team are counted."""


def find_entries(grid: Grid, *kinds: str) -> list[Entry]:
    """Return the entries of some kinds, by default those of attempts."""
    return [
        one for one in ledger.read_entries(grid.client, grid.keys) if one.what in (kinds or ledger.ATTEMPTS)
    ]


def check_ledger(grid: Grid) -> None:
    """Check that the counters equal the sums of the entries."""
    found = verify(grid.client, grid.keys)
    assert found.differences == ()
    assert found.notes == ()
