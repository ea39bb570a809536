"""The built-in stages, and the decorator for stages of your own.

In: a stage call, its input, a StageContext.
Out: the stage's output, checked to be JSON of bounded size, or StageError or SeatError.
Imported by: submission, router, gateway, testing, workers, and modules with stages of your own.
"""

from __future__ import annotations

import json
from importlib.resources import files

from gridq.protocol.models import Json
from gridq.stages.effects import Gpu
from gridq.stages.python import load_modules, stage
from gridq.stages.runner import is_pure, run_builtin

__all__ = ["Gpu", "is_pure", "load_builtin_specs", "load_modules", "run_builtin", "stage"]


def load_builtin_specs() -> list[dict[str, Json]]:
    """Return a fresh copy of the built-in stages' specifications, as JSON."""
    specs: list[dict[str, Json]] = json.loads(files(__name__).joinpath("catalogue.json").read_text("utf-8"))
    return specs
