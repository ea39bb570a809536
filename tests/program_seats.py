"""Open seats with fake programs, as workers do, and call them."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from gridq.errors import GridError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, Json, StageCall
from tests.fakes.programs import PROGRAMS
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability

PROGRAM_NAMES = tuple(PROGRAMS)
MODELS = (
    *("echo", "count", "huge", "slow", "stubborn", "silent", "empty", "hollow", "crash", "garbage", "deaf"),
    *("noisy", "quotes", "lingers", "straggler", "limited", "session", "logged-out", "expired", "no-credit"),
    *("overloaded", "no-model", "too-long", "detached"),
)
EFFECTS = [Effect(effect="Llm", model="any")]
WORDS = [{"role": "user", "content": "so it goes on"}]


def stage(implementation: str) -> StageCall:
    return StageCall(id="s", name="s", path="$.a", implementation=implementation, effects=EFFECTS)


def named(cli: str, model: str) -> str:
    return f"anthropic/{model}" if cli == "opencode" else model


def seat(cli: str, **fields: Any) -> LlmProfile:
    """Open a seat as its worker does, without a probe."""
    profile = LlmProfile()
    models = [{"name": named(cli, model)} for model in MODELS]
    table = {"name": "mine", "cli": cli, "models": models, **fields}
    program = fields.get("program") or shutil.which(PROGRAMS[cli])
    billing = fields.get("billing", "subscription")
    capability = {"host": cli, "models": models, "billing": billing, "states_cost": True}
    profile.open(LlmCapability.model_validate(capability), {**table, "program": program})
    return profile


def ask(profile: LlmProfile, cli: str, model: str, context: StageContext | None = None, **body: Json) -> Json:
    """Run one chat request of the OpenAI API format."""
    request = {"model": named(cli, model), "messages": WORDS, **body}
    value = {"api": "openai", "path": "chat/completions", "body": request}
    return profile.run(stage("llm:api_request"), value, context or StageContext())


def failing(profile: LlmProfile, cli: str, model: str) -> GridError:
    """Return the error of one chat request."""
    with pytest.raises(GridError) as caught:
        ask(profile, cli, model)
    return caught.value
