"""What a gpu seat reports with its heartbeat: metrics, and details for `gridq gpus`. Nothing here blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from gridq.profiles.metric_keys import format_metric
from gridq.protocol.models import Json
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.devices.device import MB, Reading
from workers.profiles.gpu.devices.processes import MemoryUse, summarize_memory
from workers.profiles.gpu.loaded_models import LoadedModels

MAX_PROCESSES = 8
MAX_MODELS = 32
"""Processes and models of one seat that are shown; the largest, and the last used."""

METRIC_HELPS = {
    "gpu_memory_bytes": "Memory of the seat's device, by use: used by gridq's processes, of orphan "
    "processes of gridq's, foreign, reserved by the driver and free add up to all of it; allocated is what "
    "gridq has reserved for models.",
    "gpu_utilisation_ratio": "Share of the time in which the device computed, from 0 to 1.",
    "gpu_temperature_celsius": "Temperature of the device.",
    "gpu_power_watts": "Power that the device draws.",
    "gpu_energy_joules_total": "Energy that the device has used since its driver was loaded.",
    "gpu_seconds_total": "Time that stages have used models of the seat, since the worker's start.",
    "model_loads_total": "Models that the seat has loaded, since the worker's start.",
    "model_load_seconds_total": "Time that the seat has spent on loading models, since the worker's start.",
    "model_evictions_total": "Models that the seat has unloaded, by cause, since the worker's start.",
    "model_loaded": "1 for each model that is loaded.",
    "model_memory_bytes": "Resident memory of the loaded models' processes.",
}


@dataclass
class ModelUse:
    """The use of a model: by how many stages now, when last (in seconds since 1970) and for which agent."""

    running: int = 0
    used_at: float = 0.0
    agent: str = ""


class ModelUses:
    """Who uses which model of a seat, and for how long all of them were used."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._uses: dict[str, ModelUse] = {}

    @contextmanager
    def record(self, model: str, agent: str) -> Iterator[None]:
        """Count the block as a use of `model` for `agent`."""
        began = time.monotonic()
        with self._lock:
            use = self._uses.setdefault(model, ModelUse())
            use.running += 1
            use.used_at, use.agent = time.time(), agent
        try:
            yield
        finally:
            with self._lock:
                use.running -= 1
                use.used_at = time.time()
                self.seconds += time.monotonic() - began

    def get(self, model: str) -> ModelUse:
        return self._uses.get(model, ModelUse())


def make_metrics(reading: Reading | None, models: LoadedModels, uses: ModelUses) -> dict[str, float]:
    """Return the metrics of a device's seat; those that its driver does not tell are left out."""
    loaded = models.list_loaded()
    found = {
        "gpu_seconds_total": uses.seconds,
        "model_loads_total": float(models.loads),
        "model_load_seconds_total": models.load_seconds,
        "model_memory_bytes": float(sum(each.process.measure_memory_mb() for each in loaded) * MB),
        **{format_metric("model_loaded", model=each.model.name): 1.0 for each in loaded},
        **{
            format_metric("model_evictions_total", cause=cause): float(count)
            for cause, count in models.unloads.copy().items()
        },
    }
    if reading is None:
        return found
    allocated = sum(each.hold.mb for each in loaded)
    use = summarize_memory(reading, allocated)
    parts = {**use.to_dict(), "allocated": allocated}
    optional = {
        "gpu_utilisation_ratio": reading.utilisation,
        "gpu_temperature_celsius": reading.temperature,
        "gpu_power_watts": reading.power_watts,
        "gpu_energy_joules_total": reading.energy_joules,
    }
    return {
        **found,
        **{format_metric("gpu_memory_bytes", use=name): float(mb * MB) for name, mb in parts.items()},
        **{name: value for name, value in optional.items() if value is not None},
    }


def make_details(
    seat: GpuSeat, capability: GpuCapability, reading: Reading | None, models: LoadedModels, uses: ModelUses
) -> dict[str, Json]:
    """Return the device, the models and the processes of a device's seat."""
    loaded = models.list_loaded()
    allocated = sum(each.hold.mb for each in loaded)
    device: dict[str, Any] = {
        "uuid": seat.uuid,
        "memory_mb": capability.memory_mb,
        "usable_mb": seat.memory_mb,
        "allocated_mb": allocated,
    }
    processes: list[dict[str, Any]] = []
    if reading is not None:
        use: MemoryUse = summarize_memory(reading, allocated)
        device |= {f"{name}_mb": mb for name, mb in use.to_dict().items()}
        device |= {
            "memory_mb": reading.memory_mb,
            "utilisation": reading.utilisation,
            "temperature": reading.temperature,
            "power_watts": reading.power_watts,
            "energy_joules": reading.energy_joules,
            "faults": list(reading.faults),
            "unknown": dict(reading.unknown),
            "read_at": reading.taken_at,
        }
        largest = sorted(reading.processes or (), key=lambda each: each.memory_mb or 0, reverse=True)
        processes = [asdict(each) for each in largest[:MAX_PROCESSES]]
    rows: list[dict[str, Any]] = []
    for each in loaded:
        used = uses.get(each.model.name)
        rows.append(
            {
                "name": each.model.name,
                "memory_mb": each.hold.mb,
                "running": used.running,
                "used_at": used.used_at or None,
                "agent": used.agent,
            }
        )
    rows.sort(key=lambda row: row["used_at"] or 0, reverse=True)
    return {
        "device": device,
        "models": rows[:MAX_MODELS],
        "loading": models.list_loading(),
        "processes": processes,
    }
