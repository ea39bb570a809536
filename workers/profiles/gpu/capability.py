"""The descriptor of a gpu seat, its table in the seats file, and the configuration of its runner."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gridq.protocol.models import Json
from workers.model_apis.model_catalogue import Model, ModelOffer

HEADROOM_MB = 512
"""Memory of a GPU that stays free: drivers' contexts and engines' buffers take some that no plan knows."""

IDLE_UNLOAD_SECONDS = 300.0
"""As long as Ollama keeps an idle model: a reload takes seconds, and the memory belongs to the owner."""

MIN_COMPUTE = "7.0"
"""The compute capability of Volta. Older NVIDIA GPUs are too slow for models."""

PULL_LIMIT_GB = 20.0
"""The largest model that a request may download, in GB of 1,000 MB."""

ComputeCapability = tuple[int, int]
"""NVIDIA's compute capability as numbers, (8, 9): as text, "10.0" would be less than "7.0"."""

ComputeBackend = Literal["cuda", "metal", "rocm", "cpu"]

SERVER: Literal["server"] = "server"
"""The backend of a seat whose models an engine runs that gridq did not start."""


def parse_compute_cap(value: Json) -> ComputeCapability:
    """Return a compute capability as numbers: of "8.9", 8.9 or 9. Raises ValueError for anything else."""
    if not isinstance(value, bool) and isinstance(value, str | int | float):
        match = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3}))?", str(value).strip())
        if match:
            return int(match[1]), int(match[2] or 0)
    raise ValueError('a version such as "8.0" is expected')


def format_compute_cap(value: ComputeCapability) -> str:
    """Return a compute capability as NVIDIA writes it: "8.9"."""
    return f"{value[0]}.{value[1]}"


def parse_share_address(text: str) -> tuple[str, int]:
    """Return the host and the port of `192.168.1.5:8790` or `[fd00::5]:8790`. Raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})", text, re.ASCII)
    if match is None or int(match[3]) > 65535:
        raise ValueError('an address and a port are expected, such as "192.168.1.5:8790"')
    host = match[1] or match[2]
    if is_any_address(host):
        raise ValueError("name the address at which the other machines reach this one")
    return host, int(match[3])


def is_any_address(host: str) -> bool:
    """Return whether a host's name stands for all addresses of the machine: `0.0.0.0`, `::`, `[::0]`, `0`."""
    try:
        return ipaddress.ip_address("0.0.0.0" if host == "0" else host).is_unspecified  # noqa: S104 - refused
    except ValueError:
        return False


class TooLarge(BaseModel):
    """A model that the device cannot hold: its queues, and what it needs, in MB."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    queues: tuple[str, ...] = ()
    need_mb: int = Field(ge=0)


class GpuCapability(BaseModel):
    """The descriptor of a gpu seat. Memory is in MB (2**20 bytes). `free_mb` is the value at the probe.

    `usable_mb` is what a model or a stage may use: `memory_mb` without the headroom and the system's share;
    None in what older workers send. `compute_cap` is NVIDIA's compute capability, such as `"8.9"`. `models`
    are those that fit the device and whose files exist, `too_large` those that do not fit. `engine` runs
    them; it is None if none is installed. `modules` are the Python modules whose stages it runs, `protected`
    whether also those that the owner's pause must wait for.

    The seat of an engine that already runs (`running_engines`) has the backend `server` and no memory.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    device: str
    name: str
    vendor: str
    backend: ComputeBackend | Literal["server"]
    memory_mb: int = Field(ge=0)
    free_mb: int = Field(default=0, ge=0)
    usable_mb: int | None = Field(default=None, ge=0)
    compute_cap: str | None = None
    models: tuple[ModelOffer, ...] = ()
    too_large: tuple[TooLarge, ...] = ()
    engine: str | None = None
    modules: tuple[str, ...] = ()
    protected: bool = True


class GpuConfig(BaseModel):
    """The `[gpu]` table of the seats file.

    `cpu` and `gpus` select the devices. `headroom_mb` of a GPU's memory stay free. An NVIDIA GPU below the
    compute capability `min_compute` gets no models. `concurrency` is how many stages one device runs at once;
    it defaults to the engine's own number. `threads` is the number of CPU cores to use; it defaults to all
    but one. `memory_mb` is the most that the models of one device may use together; it defaults to all that
    is usable. A model that nobody used for `idle_unload` seconds is unloaded; 0: never. `prompt_cache_mb` of
    the machine's memory hold finished prompts of each loaded model. `pulls`: a request for a model that was
    not downloaded yet downloads it, if it has at most `pull_limit_gb`; all that gridq downloads stays within
    `cache_limit_gb`. `models` are added to the catalogue. `price_per_hour` is in dollars. `budgets` limit
    each seat. `protected`: whether Python stages may run that the owner's pause must wait for. `engines` are
    engines that already run, by `running_engines.engine_table`. `model_folders`: if given, model files must
    be in one of them, or be downloads of gridq. `share_models` is the address at which the other machines of
    the grid get this machine's models, gated and private ones only with `share_gated`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: bool = True
    gpus: bool = True
    headroom_mb: int = Field(default=HEADROOM_MB, ge=0, le=1_000_000)
    min_compute: str = MIN_COMPUTE
    concurrency: int | None = Field(default=None, ge=1, le=64)
    threads: int | None = Field(default=None, ge=1, le=1024)
    memory_mb: int | None = Field(default=None, ge=1)
    idle_unload: float = Field(default=IDLE_UNLOAD_SECONDS, ge=0, le=31_536_000)
    prompt_cache_mb: int | None = Field(default=None, ge=0, le=1_000_000)
    price_per_hour: float | None = Field(default=None, ge=0, le=1_000_000)
    pulls: bool = False
    pull_limit_gb: float = Field(default=PULL_LIMIT_GB, gt=0, le=1_000_000)
    cache_limit_gb: float | None = Field(default=None, gt=0, le=1_000_000)
    budgets: list[Json] = Field(default_factory=list)
    protected: bool = True
    model_folders: tuple[str, ...] = ()
    share_models: str | None = None
    share_gated: bool = False
    share_mb_per_second: float | None = Field(default=None, gt=0, le=1_000_000)
    models: list[Json] = Field(default_factory=list)
    engines: list[Json] = Field(default_factory=list)

    @field_validator("min_compute", mode="before")
    @classmethod
    def _check_min_compute(cls, value: Json) -> str:
        return format_compute_cap(parse_compute_cap(value))

    @field_validator("model_folders")
    @classmethod
    def _check_model_folders(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not folder.startswith(("/", "~")) for folder in value):
            raise ValueError("a folder must begin with / or ~")
        return value

    @field_validator("share_models")
    @classmethod
    def _check_share_models(cls, value: str | None) -> str | None:
        if value is not None:
            parse_share_address(value)
        return value


class GpuSeat(BaseModel):
    """The configuration of a gpu seat's runner: the device, the models and the engine.

    `memory_mb` is what its models may use together, and `device_mb` what all seats of all homes may use of
    the device (default: as much); `headroom_mb` stays free beside them. A request may pull a model of at most
    `pull_bytes`; None: none. `model_folders` as in `GpuConfig`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    backend: ComputeBackend
    uuid: str | None = None
    memory_mb: int
    device_mb: int | None = None
    headroom_mb: int = 0
    concurrency: int = 1
    threads: int = 1
    engine: str | None = None
    idle_unload: float = IDLE_UNLOAD_SECONDS
    prompt_cache_mb: int | None = None
    price_per_hour: float | None = None
    pull_bytes: int | None = None
    cache_bytes: int | None = None
    model_folders: tuple[str, ...] = ()
    models: tuple[Model, ...] = ()
