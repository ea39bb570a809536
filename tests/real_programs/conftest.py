"""Only `make clis` runs these tests. `make test` uses fakes of the same programs."""

from __future__ import annotations

import pytest

from tests.compatibility.matrix import matrix

__all__ = ["matrix"]


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if config.option.markexpr != "clis" else None
