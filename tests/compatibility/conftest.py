"""Fixtures of the matrix."""

from __future__ import annotations

from tests.compatibility.matrix import matrix

__all__ = ["matrix"]
