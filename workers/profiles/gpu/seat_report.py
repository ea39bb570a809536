"""What a gpu seat reports with its heartbeat: metrics, and details for `gridq gpus`. Nothing here blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gridq.profiles.metric_keys import format_metric
from gridq.protocol.models import Json
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.devices.device import MB, Reading
from workers.profiles.gpu.devices.processes import MemoryUse, summarize_memory
from workers.profiles.gpu.loaded_models import LoadedModel, LoadedModels
from workers.profiles.gpu.python_stages.running import PythonStages, RunningStage

MAX_PROCESSES = 8
MAX_MODELS = 32
MAX_STAGES = 16
"""Processes, models and Python stages of a seat that are shown: the largest, the last used, and the first."""

METRIC_HELPS = {
    "gpu_memory_bytes": "Memory of the seat's device, by use: used by gridq's processes, of orphan "
    "processes of gridq's, foreign, reserved by the driver and free add up to all of it; allocated is what "
    "gridq has reserved for models and stages.",
    "gpu_utilisation_ratio": "Share of the time in which the device computed, from 0 to 1.",
    "gpu_temperature_celsius": "Temperature of the device.",
    "gpu_power_watts": "Power that the device draws.",
    "gpu_energy_joules_total": "Energy that the device has used since its driver was loaded.",
    "gpu_seconds_total": "Time that stages have used models of the seat, or held its device themselves, "
    "since the worker's start.",
    "model_load_seconds": "Time that loads of models took, since the worker's start: their sum and count.",
    "model_evictions_total": "Models that the seat has unloaded, by cause, since the worker's start.",
    "model_loaded": "1 for each model that is loaded.",
    "model_memory_bytes": "Resident memory of the loaded models' processes.",
}


def make_metrics(reading: Reading | None, models: LoadedModels, stages: PythonStages) -> dict[str, float]:
    """Return the metrics of a device's seat; those that its driver does not tell are left out."""
    loaded = models.list_loaded()
    found = {
        "gpu_seconds_total": models.use_seconds + stages.sum_seconds(),
        "model_load_seconds_count": float(models.loads),
        "model_load_seconds_sum": models.load_seconds,
        "model_memory_bytes": float(sum(each.process.measure_memory_mb() for each in loaded) * MB),
        **{format_metric("model_loaded", model=each.model.name): 1.0 for each in loaded},
        **{
            format_metric("model_evictions_total", cause=cause): float(count)
            for cause, count in models.unloads.copy().items()
        },
    }
    if reading is None:
        return found
    allocated = _sum_allocated_mb(loaded, stages.list_running())
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


def _sum_allocated_mb(loaded: Iterable[LoadedModel], running: Iterable[RunningStage]) -> int:
    return sum(each.hold.mb for each in loaded) + sum(each.memory_mb for each in running)


def make_details(
    seat: GpuSeat,
    capability: GpuCapability,
    reading: Reading | None,
    models: LoadedModels,
    stages: PythonStages,
) -> dict[str, Json]:
    """Return the device of a seat, its models, its Python stages and its processes."""
    loaded, running = models.list_loaded(), stages.list_running()
    allocated = _sum_allocated_mb(loaded, running)
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
    to_epoch = time.time() - time.monotonic()
    rows: list[dict[str, Any]] = [
        {
            "name": each.model.name,
            "memory_mb": each.hold.mb,
            "running": each.users,
            "used_at": each.used_at + to_epoch if each.is_used else None,
            "agent": each.agent,
        }
        for each in sorted(loaded, key=lambda each: each.used_at, reverse=True)
    ]
    return {
        "device": device,
        "models": rows[:MAX_MODELS],
        "stages": [
            {
                "name": each.name,
                "memory_mb": each.memory_mb,
                "used_mb": each.child.used_mb,
                "agent": each.agent,
                "protected": each.is_protected,
                "began_at": each.began_at + to_epoch,
            }
            for each in running[:MAX_STAGES]
        ],
        "processes": processes,
    }
