"""A model for a machine that has none: one that is open, is on the hub, and fits the memory.

From ggml-org's collection "Qwen 3" on the hub, as its pages stood in December 2025 (Apache-2.0, Q4_K_M), and
the shapes that the files state. Each fits with its context on four slots.
"""

from __future__ import annotations

SUGGESTIONS = (
    (29_000, "hf:ggml-org/Qwen3-32B-GGUF"),
    (15_000, "hf:ggml-org/Qwen3-14B-GGUF"),
    (10_500, "hf:ggml-org/Qwen3-8B-GGUF"),
    (6_500, "hf:ggml-org/Qwen3-4B-GGUF --context 4096"),
    (4_500, "hf:ggml-org/Qwen3-1.7B-GGUF --context 4096"),
    (2_500, "hf:ggml-org/Qwen3-0.6B-GGUF --context 2048"),
)
"""The memory in MB that models may use, and what to pull for it, the largest first."""

MAX_CPU_MB = 10_000
"""A CPU has the memory for larger models, and is too slow for them."""


def suggest_pull(memory_mb: int, *, is_cpu: bool) -> str:
    """Return the command that gets a model for a device, empty if none of the table fits."""
    usable = min(memory_mb, MAX_CPU_MB) if is_cpu else memory_mb
    found = next((what for needed, what in SUGGESTIONS if usable >= needed), None)
    return f"gridq models pull {found}" if found else ""
