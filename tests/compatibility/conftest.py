"""Fixtures of the matrix."""

from __future__ import annotations

from tests.compatibility.matrix import matrix
from tests.compatibility.seats import seat

__all__ = ["matrix", "seat"]
