"""A grid of scripts alone; what must always hold is checked after every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridq.app import app
from gridq.messaging import wake_ups
from gridq.store.record_fields import (
    ARM_FIELD,
    JOB_FIELDS,
    SCOPE_FIELDS,
    SEAT_FIELDS,
    STEP_FIELDS,
    SUBMITTED_FIELDS,
    SUMMARY_FIELDS,
)
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


def find_unknown_fields(kind: str, fields: list[str]) -> list[str]:
    """Return those `fields` of a record that are not in its table. `kind`: the first word of its key."""
    if kind == "job":
        numbered = {*STEP_FIELDS, *SCOPE_FIELDS, ARM_FIELD}
        return [
            f for f in fields if (f.partition(":")[0] not in numbered if ":" in f else f not in JOB_FIELDS)
        ]
    known = {"submitted": SUBMITTED_FIELDS, "summary": SUMMARY_FIELDS, "seat": SEAT_FIELDS}[kind]
    return [name for name in fields if name not in known]
