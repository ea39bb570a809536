"""The stages that come with gridq, and the way to write one's own."""

from __future__ import annotations

import json
from importlib.resources import files

from gridq.protocol.models import Json
from gridq.stages.python import load_modules, stage
from gridq.stages.runner import is_pure, run_builtin

__all__ = ["builtin_specs", "is_pure", "load_modules", "run_builtin", "stage"]


def load_builtin_specs() -> list[dict[str, Json]]:
    """The built-in stages as the catalogue reads them; a fresh copy each time."""
    specs: list[dict[str, Json]] = json.loads(files(__name__).joinpath("catalogue.json").read_text("utf-8"))
    return specs
