"""The profile `gpu`: this machine's GPUs and CPU, and the models that run on them.

In: the `[gpu]` table, a stage and its input.
Out: one seat for each device, the output of a stage.
Imported by: demo; loaded as an entry point.
"""

from typing import Any

__all__ = ["GpuProfile"]


def __getattr__(name: str) -> Any:
    # A model's child process imports this package and must not load pydantic and the core.
    if name == "GpuProfile":
        from workers.profiles.gpu.profile import GpuProfile

        return GpuProfile
    raise AttributeError(name)
