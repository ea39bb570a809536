"""The `Gpu` effect, the ladders of memory, and which demands a gpu seat meets.

Queue names make "at least" a name: `gpu:cuda-24g` is served by every CUDA device of the 24 GB class or above.
The exact numbers go along in the demand and are compared as numbers.
"""

from __future__ import annotations

import re
from typing import get_args

from gridq.errors import InvalidField
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, Effect, Json
from workers.model_apis.demand import describe_model_shortfall, list_llm_queues, parse_llm_demand
from workers.profiles.gpu.capability import ComputeBackend, GpuCapability

EFFECT = "Gpu"
KIND = "gpu"
MEMORY_CLASSES_GB = (8, 12, 16, 24, 32, 48, 80, 96, 141, 192)
"""The classes of memory, in GB as the makers name them."""

MIN_CLASS_SHARE = 0.94
"""A card counts to a class from this share of its nominal memory (GB of 1,000 MB) on.

Cards report less than their name: an L4 of "24 GB" 23,034 MB, an L40S of "48 GB" 46,068, a T4 of "16 GB"
15,109 with error correction on.
"""

CLASSED_BACKENDS = frozenset({"cuda", "metal"})
BACKENDS = get_args(ComputeBackend)


def parse_gpu_demand(effect: Effect) -> Demand | None:
    """What `{"effect": "Gpu", "backend"?, "memory_mb"?, "compute_cap"?}` needs; None for any other effect.

    Without a backend any GPU will do (not the CPU), `gpu:any` or its ladder; `compute_cap` alone means CUDA.
    InvalidField names the field that is wrong.
    """
    if effect.effect != EFFECT:
        return None
    fields = effect.fields
    needs: dict[str, Json] = {}
    cap = fields.get("compute_cap")
    if cap is not None:
        needs["compute_cap"] = _cap_text(cap)
    backend = fields.get("backend")
    if backend is None and cap is not None:
        backend = "cuda"
    if backend is not None and backend not in BACKENDS:
        raise _wrong("backend", "one of " + ", ".join(BACKENDS))
    if cap is not None and backend != "cuda":
        raise _wrong("compute_cap", "no compute_cap beside a backend that is not cuda")
    memory = fields.get("memory_mb")
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int | float) or memory < 0:
            raise _wrong("memory_mb", "a number of MB")
        needs["memory_mb"] = memory
    name = backend or "any"
    if backend != "cpu" and memory:
        name += f"-{_class_for(memory)}g"
    return Demand(queue=queue_names.make_queue_name(KIND, name), needs=needs)


def parse_demand(effect: Effect) -> Demand | None:
    """What an effect that a gpu seat can serve needs: `Gpu`, or `Llm` by the models it can load."""
    return parse_gpu_demand(effect) or parse_llm_demand(effect)


def list_queues(capability: GpuCapability) -> list[str]:
    """A seat's queues: its own class first, then each smaller one, then its models'."""
    names: list[str] = []
    if capability.backend in CLASSED_BACKENDS:
        classes = list_memory_classes(capability.memory_mb)
        for base in (capability.backend, "any"):
            names += [f"{base}-{size}g" for size in classes] + [base]
    else:
        names.append(capability.backend)
    return [queue_names.make_queue_name(KIND, name) for name in names] + list_llm_queues(capability.models)


def list_memory_classes(memory_mb: int) -> list[int]:
    """The classes that a device with `memory_mb` counts to, the largest first.

    >>> classes_of(32_607)
    [32, 24, 16, 12, 8]
    """
    return [size for size in reversed(MEMORY_CLASSES_GB) if memory_mb >= MIN_CLASS_SHARE * size * 1000]


def matches(demand: Demand, capability: GpuCapability) -> bool:
    return not describe_shortfall(demand, capability)


def describe_shortfall(demand: Demand, capability: GpuCapability) -> str:
    """In words what a seat lacks for `demand`; empty where it lacks nothing."""
    if demand.queue not in list_queues(capability):
        return f"{demand.queue} is not served by {capability.device} ({capability.backend})"
    if queue_names.get_kind(demand.queue) != KIND:
        return describe_model_shortfall(demand, capability.models)
    memory = demand.needs.get("memory_mb", 0)
    if capability.memory_mb < memory:
        return f"needs {memory} MB, {capability.device} has {capability.memory_mb} MB"
    cap = demand.needs.get("compute_cap")
    if cap and _cap(capability.compute_cap or "0") < _cap(cap):
        return f"needs compute capability {cap}, {capability.device} has {capability.compute_cap}"
    return ""


def _class_for(memory_mb: float) -> int:
    for size in MEMORY_CLASSES_GB:
        if memory_mb <= size * 1024:
            return size
    raise _wrong("memory_mb", f"at most {MEMORY_CLASSES_GB[-1] * 1024}, the largest class there is")


def _cap_text(value: Json) -> str:
    if not isinstance(value, bool) and isinstance(value, str | int | float):
        text = str(value).strip()
        if re.fullmatch(r"\d{1,3}(\.\d{1,3})?", text):
            return text
    raise _wrong("compute_cap", 'a version such as "8.0"')


def _cap(text: str) -> tuple[int, int]:
    """A compute capability as numbers: as text "10.0" would be less than "7.0"."""
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _wrong(field: str, expected: str) -> InvalidField:
    return InvalidField(
        f"A Gpu effect's {field} is not usable", {"path": f"effects.{field}", "expected": expected}
    )
