"""Map the `Gpu` effect to queues, and match demands with gpu seats.

A queue name means "at least": every CUDA device of the 24 GB class or above serves `gpu:cuda-24g`. The demand
also has the exact numbers, which are compared as numbers.
"""

from __future__ import annotations

import re
from typing import get_args

from gridq.errors import InvalidField
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, Effect, Json
from workers.model_apis.demand import explain_model_mismatch, list_llm_queues, parse_llm_demand
from workers.profiles.gpu.capability import ComputeBackend, GpuCapability

EFFECT = "Gpu"
KIND = "gpu"
MEMORY_CLASSES_GB = (8, 12, 16, 24, 32, 48, 80, 96, 141, 192)
"""Memory classes, in GB as vendors label them."""

MIN_CLASS_SHARE = 0.94
"""A card belongs to a class if it has at least this share of the class's memory (GB of 1,000 MB).

Cards report less than their label: a "24 GB" L4 23,034 MB, a "48 GB" L40S 46,068 MB, a "16 GB" T4 15,109 MB
with error correction on.
"""

CLASSED_BACKENDS = frozenset({"cuda", "metal"})
BACKENDS = get_args(ComputeBackend)


def parse_gpu_demand(effect: Effect) -> Demand | None:
    """Return the demand of `{"effect": "Gpu", "backend"?, "memory_mb"?, "compute_cap"?}`, None for others.

    Without a backend, any GPU will do, but not the CPU: the queue is `gpu:any` or one of its classes.
    `compute_cap` alone means CUDA. Raises InvalidField naming the wrong field.
    """
    if effect.effect != EFFECT:
        return None
    fields = effect.fields
    needs: dict[str, Json] = {}
    compute_cap = fields.get("compute_cap")
    if compute_cap is not None:
        needs["compute_cap"] = _parse_compute_cap(compute_cap)
    backend = fields.get("backend")
    if backend is None and compute_cap is not None:
        backend = "cuda"
    if backend is not None and backend not in BACKENDS:
        raise _make_field_error("backend", "one of " + ", ".join(BACKENDS))
    if compute_cap is not None and backend != "cuda":
        raise _make_field_error("compute_cap", "absent, or the backend cuda")
    memory = fields.get("memory_mb")
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int | float) or memory < 0:
            raise _make_field_error("memory_mb", "a number of MB")
        needs["memory_mb"] = memory
    name = backend or "any"
    if backend != "cpu" and memory:
        name += f"-{_find_class(memory)}g"
    return Demand(queue=queue_names.make_queue_name(KIND, name), needs=needs)


def parse_demand(effect: Effect) -> Demand | None:
    """Return the demand of an effect that a gpu seat may serve: `Gpu`, or `Llm` for its models."""
    return parse_gpu_demand(effect) or parse_llm_demand(effect)


def list_queues(capability: GpuCapability) -> list[str]:
    """Return the queues of a seat: its memory class, each smaller one, then those of its models."""
    names: list[str] = []
    if capability.backend in CLASSED_BACKENDS:
        classes = list_memory_classes(capability.memory_mb)
        for base in (capability.backend, "any"):
            names += [f"{base}-{size}g" for size in classes] + [base]
    else:
        names.append(capability.backend)
    return [queue_names.make_queue_name(KIND, name) for name in names] + list_llm_queues(capability.models)


def list_memory_classes(memory_mb: int) -> list[int]:
    """Return the memory classes of a device with `memory_mb`, the largest first.

    >>> list_memory_classes(32_607)
    [32, 24, 16, 12, 8]
    """
    return [size for size in reversed(MEMORY_CLASSES_GB) if memory_mb >= MIN_CLASS_SHARE * size * 1000]


def matches(demand: Demand, capability: GpuCapability) -> bool:
    return not explain_mismatch(demand, capability)


def explain_mismatch(demand: Demand, capability: GpuCapability) -> str:
    """Say why a seat does not meet `demand`. Return "" if it does."""
    if demand.queue not in list_queues(capability):
        return f"{capability.device} ({capability.backend}) does not serve {demand.queue}"
    if queue_names.get_kind(demand.queue) != KIND:
        return explain_model_mismatch(demand, capability.models)
    memory = demand.needs.get("memory_mb", 0)
    if capability.memory_mb < memory:
        return f"needs {memory} MB, {capability.device} has {capability.memory_mb} MB"
    compute_cap = demand.needs.get("compute_cap")
    if compute_cap and _split_compute_cap(capability.compute_cap or "0") < _split_compute_cap(compute_cap):
        return f"needs compute capability {compute_cap}, {capability.device} has {capability.compute_cap}"
    return ""


def _find_class(memory_mb: float) -> int:
    for size in MEMORY_CLASSES_GB:
        if memory_mb <= size * 1024:
            return size
    raise _make_field_error("memory_mb", f"at most {MEMORY_CLASSES_GB[-1] * 1024}, the largest class")


def _parse_compute_cap(value: Json) -> str:
    if not isinstance(value, bool) and isinstance(value, str | int | float):
        text = str(value).strip()
        if re.fullmatch(r"\d{1,3}(\.\d{1,3})?", text):
            return text
    raise _make_field_error("compute_cap", 'a version such as "8.0"')


def _split_compute_cap(text: str) -> tuple[int, int]:
    """Return a compute capability as numbers: as a string, "10.0" would be less than "7.0"."""
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _make_field_error(field: str, expected: str) -> InvalidField:
    return InvalidField(
        f"A Gpu effect's {field} is not valid", {"path": f"effects.{field}", "expected": expected}
    )
