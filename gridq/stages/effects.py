"""Effects for `@stage` that have fields."""

from __future__ import annotations

from typing import Literal

from gridq.protocol.models import Effect


class Gpu(Effect):
    """The effect of a stage that needs a GPU: `@stage(effects=[Gpu(memory_mb=8000, seconds=60)])`.

    The stage runs in its own process, which sees one device. This process and those that it starts may hold
    at most `memory_mb` MB of the device's memory (default: all that the seat may use). `seconds` is how long
    you expect it to take; budgets in GPU seconds reserve that. `backend` and `min_compute` (compute
    capability, such as "8.0") restrict the device; "cpu" means the machine's processors and memory. While a
    `protected` stage runs, its seat takes nothing else; if the machine's owner takes the seat back, the stage
    runs to its end first.
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
