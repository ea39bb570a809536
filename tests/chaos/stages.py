"""The chaos grid's Python stages, which every machine's `local` seat runs."""

from __future__ import annotations

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from gridq.stages import stage
from tests.chaos.witness import work


@stage
def chaos_local(value: Json, context: StageContext) -> Json:
    """A witnessed stage."""
    return work(value, context)


@stage(timeout=0.5)
def chaos_slow(value: Json, context: StageContext) -> Json:
    """A witnessed stage that may take half a second."""
    return work(value, context)
