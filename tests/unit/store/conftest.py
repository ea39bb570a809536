"""A grid of scripts alone; what must always hold is checked after every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridq.app import app
from gridq.messaging import wake_ups
from gridq.store.record_fields import find_unknown_fields
from gridq.views.audit import find_breaches
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[Grid]:
    """Scripts and wake-ups in a corner of their own."""
    made = Grid(grid_env.client, grid_env.settings)
    wake_ups.write_templates(app, made.client, made.keys)
    yield made
    assert not find_breaches(made.client, made.keys)
    assert not undocumented(made)


def undocumented(grid: Grid) -> list[str]:
    """Fields of jobs' and seats' records that gridq/store/record_fields.py does not list."""
    found = []
    for kind in ("job", "submitted", "summary", "seat"):
        for key in grid.client.scan_iter(grid.keys(kind, "*"), count=1000):
            fields = [name.decode() for name in grid.client.hkeys(key)]
            found += [f"{key.decode()} {name}" for name in find_unknown_fields(kind, fields)]
    return found
