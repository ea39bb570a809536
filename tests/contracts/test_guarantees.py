"""docs/guarantees.md names existing tests and programs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_named_test_exists() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 30
    for file, test in named:
        found = [path.read_text() for path in (ROOT / "tests").rglob(file)]
        assert any(f"def {test}(" in code for code in found), f"{file}::{test}"


def test_every_named_program_exists() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    named = [f"benchmarks/{group}.py" for group in re.findall(r"`python -m benchmarks (\w+)`", text)]
    named += re.findall(r"\btests/[\w/]+\.py\b", text)
    assert len(named) > 4
    for path in named:
        assert (ROOT / path).is_file(), path
