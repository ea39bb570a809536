"""The conformance suite over every installed profile and over those that the tests use."""

from __future__ import annotations

from gridq.profiles.conformance import ProfileConformance
from gridq.profiles.profile import list_installed
from tests.chaos.profile import ChaosProfile
from tests.fakes.bench_profile import BenchProfile
from workers.profiles.gpu import GpuProfile
from workers.profiles.llm import LlmProfile


class TestBench(ProfileConformance):
    profile = BenchProfile
    effects = (
        ({"effect": "Bench"}, "bench:any"),
        ({"effect": "Bench", "slug": "fast"}, "bench:fast"),
    )
    wrong_effects = ({"effect": "Bench", "slug": 3}, {"effect": "Bench", "slug": ""})
    capabilities = ({}, {"slugs": ["fast"]}, {"slugs": ["slow"]})
    served = ((0,), (0, 1), (0,))


class TestChaos(TestBench):
    profile = ChaosProfile


class TestLlm(ProfileConformance):
    profile = LlmProfile
    effects = (
        ({"effect": "Llm"}, "llm:any"),
        ({"effect": "Llm", "model": "claude-opus-4-6"}, "llm:claude-opus-4-6"),
        ({"effect": "Llm", "model": "claude"}, "llm:claude"),
        ({"effect": "Llm", "model": "claude", "context": 500_000}, "llm:claude"),
    )
    wrong_effects = (
        {"effect": "Llm", "model": 3},
        {"effect": "Llm", "context": -1},
        {"effect": "Llm", "modle": "claude"},
    )
    capabilities = (
        {
            "host": "a",
            "models": [{"name": "claude-opus-4-6", "families": ["claude"], "context": 200_000}],
        },
        {"host": "b", "models": [{"name": "claude-opus-4-6-fast"}]},
    )
    served = ((0, 1, 2), (0,))


class TestGpu(ProfileConformance):
    profile = GpuProfile
    effects = (
        ({"effect": "Gpu", "backend": "cuda", "memory_mb": 18000, "compute_cap": "8.0"}, "gpu:cuda-24g"),
        ({"effect": "Gpu", "backend": "cuda", "compute_cap": "9.0"}, "gpu:cuda"),
        ({"effect": "Gpu", "backend": "cpu"}, "gpu:cpu"),
        ({"effect": "Llm"}, "llm:any"),
        ({"effect": "Llm", "model": "smollm2"}, "llm:smollm2"),
    )
    wrong_effects = (
        {"effect": "Gpu", "backend": "vulkan"},
        {"effect": "Gpu", "memory_mb": "much"},
        {"effect": "Gpu", "seconds": 0},
        {"effect": "Gpu", "seconds": True},
        {"effect": "Gpu", "protected": 1},
        {"effect": "Gpu", "memory": 8000},
        {"effect": "Llm", "model": ["a", "a"]},
    )
    capabilities = (
        {
            "device": "gpu0",
            "name": "RTX 5090",
            "vendor": "nvidia",
            "backend": "cuda",
            "memory_mb": 32_607,
            "compute_cap": "12.0",
            "models": [{"name": "smollm2-135m-instruct", "families": ["smollm2"]}],
        },
        {
            "device": "gpu0",
            "name": "RTX 2080 Ti",
            "vendor": "nvidia",
            "backend": "cuda",
            "memory_mb": 11_264,
            "compute_cap": "7.5",
        },
        {"device": "cpu", "name": "CPU", "vendor": "amd", "backend": "cpu", "memory_mb": 64_000},
    )
    served = ((0, 1, 3, 4), (), (2,))


def test_the_suite_runs_over_every_installed_profile():
    tested = {TestLlm.profile, TestGpu.profile}
    assert {point.load() for point in list_installed().values()} == tested
