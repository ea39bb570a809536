"""The descriptor of a gpu seat, its table in the seats file, and the configuration of its runner."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gridq.protocol.models import Json
from workers.model_apis.model_catalogue import Model, ModelOffer

ComputeBackend = Literal["cuda", "metal", "cpu"]


class GpuCapability(BaseModel):
    """The descriptor of a gpu seat. Memory is in MB (2**20 bytes). `free_mb` is the value at the probe.

    `compute_cap` is NVIDIA's compute capability, such as `"8.9"`. `models` are those that fit the device and
    whose files exist. `engine` runs them; it is None if none is installed.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    device: str
    name: str
    vendor: str
    backend: ComputeBackend
    memory_mb: int = Field(ge=0)
    free_mb: int = Field(default=0, ge=0)
    compute_cap: str | None = None
    models: tuple[ModelOffer, ...] = ()
    engine: str | None = None


class GpuConfig(BaseModel):
    """The `[gpu]` table of the seats file.

    `cpu` and `gpus` select the devices. `concurrency` is how many stages one device runs at once; it defaults
    to the engine's own number. `threads` is the number of CPU cores to use; it defaults to all but one.
    `models` are added to the catalogue. `price_per_hour` is in dollars.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: bool = True
    gpus: bool = True
    concurrency: int | None = Field(default=None, ge=1, le=64)
    threads: int | None = Field(default=None, ge=1, le=1024)
    price_per_hour: float | None = Field(default=None, ge=0, le=1_000_000)
    models: list[Json] = Field(default_factory=list)


class GpuSeat(BaseModel):
    """The configuration of a gpu seat's runner: the device, the models and the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    backend: ComputeBackend
    uuid: str | None = None
    memory_mb: int
    concurrency: int = 1
    threads: int = 1
    engine: str | None = None
    price_per_hour: float | None = None
    models: tuple[Model, ...] = ()
