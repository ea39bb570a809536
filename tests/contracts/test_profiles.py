"""The conformance suite over every installed profile."""

from __future__ import annotations

from gridq.testing import FakeProfile, ProfileConformance


class TestBench(ProfileConformance):
    profile = FakeProfile
    effects = (
        ({"effect": "Bench"}, "bench:any"),
        ({"effect": "Bench", "slug": "fast"}, "bench:fast"),
    )
    wrong_effects = ({"effect": "Bench", "slug": 3}, {"effect": "Bench", "slug": ""})
    capabilities = ({}, {"slugs": ["fast"]}, {"slugs": ["slow"]})
    served = ((0,), (0, 1), (0,))
