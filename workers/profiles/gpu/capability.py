"""What a gpu seat says of itself, and what the operator says of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gridq.protocol.models import Json
from workers.model_apis.models import Model, ModelOffer

Backend = Literal["cuda", "metal", "cpu"]


class GpuCapability(BaseModel):
    """A gpu seat's descriptor. Memory is in MB (2**20 bytes); `free_mb` is what was free at the probe.

    `compute_cap` is NVIDIA's, `"8.9"`; `models` are those that fit the device and whose files are there;
    `engine` runs them, None where none is installed.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    device: str
    name: str
    vendor: str
    backend: Backend
    memory_mb: int = Field(ge=0)
    free_mb: int = Field(default=0, ge=0)
    compute_cap: str | None = None
    models: tuple[ModelOffer, ...] = ()
    engine: str | None = None


class GpuConfig(BaseModel):
    """The `[gpu]` table of the seats file.

    `cpu` and `gpus` say whether the CPU and the GPUs are offered; `concurrency` is how many stages one device runs
    at once (the engine's own number where it is not given), `threads` on how many of the CPU's cores (all but
    one); `models` adds to the catalogue; `price_per_hour` is in dollars.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: bool = True
    gpus: bool = True
    concurrency: int | None = Field(default=None, ge=1, le=64)
    threads: int | None = Field(default=None, ge=1, le=1024)
    price_per_hour: float | None = Field(default=None, ge=0, le=1_000_000)
    models: list[Json] = Field(default_factory=list)


class GpuSeat(BaseModel):
    """What a gpu seat's runner is given: the device, what it may load and with what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    backend: Backend
    uuid: str | None = None
    memory_mb: int
    concurrency: int = 1
    threads: int = 1
    engine: str | None = None
    price_per_hour: float | None = None
    models: tuple[Model, ...] = ()
