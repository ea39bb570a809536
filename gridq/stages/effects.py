"""Effects for `@stage` that have fields."""

from __future__ import annotations

from typing import Literal

from gridq.protocol.models import Effect


class Gpu(Effect):
    """The effect of a stage that needs a GPU: `@stage(effects=[Gpu(memory_mb=8000, seconds=60)])`.

    The stage runs in a process of its own that sees one device. It and the processes that it starts may hold
    at most `memory_mb` MB of the device's memory (default: all of it that the seat may use). `seconds` is how
    long it is expected to take, which budgets in GPU seconds reserve. `backend` and `min_compute` (compute
    capability, such as "8.0") restrict the device; "cpu" means the machine's processors and memory. A
    `protected` stage is not stopped if the owner of the machine takes the seat back: that waits until it has
    ended.
    """

    def __init__(
        self,
        *,
        memory_mb: float | None = None,
        seconds: float | None = None,
        backend: Literal["cuda", "rocm", "metal", "cpu"] | None = None,
        min_compute: str | None = None,
        protected: bool = False,
    ) -> None:
        fields = {
            "memory_mb": memory_mb,
            "seconds": seconds,
            "backend": backend,
            "min_compute": min_compute,
            "protected": protected or None,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        super().__init__(effect="Gpu", **given)
