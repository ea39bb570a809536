"""The kind `gpu`: this machine's GPUs and its CPU, and the models that run on them."""

from typing import Any

__all__ = ["GpuProfile"]


def __getattr__(name: str) -> Any:
    # A model's child process imports this package and must not carry pydantic and the core in its memory.
    if name == "GpuProfile":
        from workers.profiles.gpu.profile import GpuProfile

        return GpuProfile
    raise AttributeError(name)
