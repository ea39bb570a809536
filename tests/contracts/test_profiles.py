"""The conformance suite over every installed profile."""

from __future__ import annotations

from gridq.testing import FakeProfile, ProfileConformance
from workers.profiles.llm import LlmProfile


class TestBench(ProfileConformance):
    profile = FakeProfile
    effects = (
        ({"effect": "Bench"}, "bench:any"),
        ({"effect": "Bench", "slug": "fast"}, "bench:fast"),
    )
    wrong_effects = ({"effect": "Bench", "slug": 3}, {"effect": "Bench", "slug": ""})
    capabilities = ({}, {"slugs": ["fast"]}, {"slugs": ["slow"]})
    served = ((0,), (0, 1), (0,))


class TestLlm(ProfileConformance):
    profile = LlmProfile
    effects = (
        ({"effect": "Llm"}, "llm:any"),
        ({"effect": "Llm", "model": "claude-opus-4-6"}, "llm:claude-opus-4-6"),
        ({"effect": "Llm", "model": "claude"}, "llm:claude"),
        ({"effect": "Llm", "model": "claude", "context": 500_000}, "llm:claude"),
    )
    wrong_effects = ({"effect": "Llm", "model": 3}, {"effect": "Llm", "context": -1})
    capabilities = (
        {
            "host": "a",
            "models": [{"name": "claude-opus-4-6", "families": ["claude"], "context": 200_000}],
        },
        {"host": "b", "models": [{"name": "claude-opus-4-6-fast"}]},
    )
    served = ((0, 1, 2), (0,))
