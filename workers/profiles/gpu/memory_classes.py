"""Map the `Gpu` effect to queues, and match demands with gpu seats.

A queue name means "at least": every CUDA device of the 24 GB class or above serves `gpu:cuda-24g`. The demand
also has the exact numbers, which are compared as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from gridq.errors import InvalidField
from gridq.profiles.profile import check_effect_fields
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, Effect, Json
from workers.model_apis.demand import explain_model_mismatch, list_llm_queues, parse_llm_demand
from workers.profiles.gpu.capability import (
    SERVER,
    ComputeBackend,
    GpuCapability,
    format_compute_cap,
    parse_compute_cap,
)

EFFECT = "Gpu"
KIND = "gpu"
FIELDS = ("memory_mb", "seconds", "backend", "min_compute", "compute_cap", "protected")
"""The fields of a `Gpu` effect."""

MEMORY_CLASSES_GB = (8, 12, 16, 24, 32, 48, 80, 96, 141, 192)
"""Memory classes, in GB as vendors label them."""

MAX_SECONDS = 40 * 86_400
"""The longest that a stage may be expected to hold a device: no job lasts longer."""

MAX_MEMORY_MB = 10**12
"""More than any machine has. Larger numbers do not pass through Redis as they are."""

MIN_CLASS_SHARE = 0.94
"""A card belongs to a class if it has at least this share of the class's memory (GB of 1,000 MB).

Cards report less than their label: a "24 GB" L4 23,034 MB, a "48 GB" L40S 46,068 MB, a "16 GB" T4 15,109 MB
with error correction on.
"""

CLASSED_BACKENDS = frozenset({"cuda", "metal", "rocm"})
BACKENDS = get_args(ComputeBackend)


def parse_gpu_demand(effect: Effect) -> Demand | None:
    """Return the demand of `{"effect": "Gpu", "backend"?, "memory_mb"?, "min_compute"?, "seconds"?,
    "protected"?}`, None for others.

    Without a backend, any GPU will do, but not the CPU: the queue is `gpu:any` or one of its classes.
    `min_compute` (also named `compute_cap`) alone means CUDA. Raises InvalidField naming the wrong field.
    """
    if effect.effect != EFFECT:
        return None
    check_effect_fields(effect, FIELDS)
    fields = effect.fields
    needs: dict[str, Json] = {}
    name = "min_compute" if "min_compute" in fields else "compute_cap"
    min_compute = fields.get(name)
    if min_compute is not None:
        if name == "min_compute" and fields.get("compute_cap") is not None:
            raise _make_field_error("compute_cap", "absent beside min_compute, which means the same")
        try:
            needs["compute_cap"] = format_compute_cap(parse_compute_cap(min_compute))
        except ValueError:
            raise _make_field_error(name, 'a version such as "8.0"') from None
    backend = fields.get("backend")
    if backend is None and min_compute is not None:
        backend = "cuda"
    if backend is not None and backend not in BACKENDS:
        raise _make_field_error("backend", "one of " + ", ".join(BACKENDS))
    if min_compute is not None and backend != "cuda":
        raise _make_field_error(name, "absent, or the backend cuda")
    memory = fields.get("memory_mb")
    if memory is not None:
        if not _is_amount(memory, MAX_MEMORY_MB):
            raise _make_field_error("memory_mb", "a number of MB above 0; without it, all of the device")
        needs["memory_mb"] = memory
    seconds = fields.get("seconds")
    if seconds is not None and not _is_amount(seconds, MAX_SECONDS):
        raise _make_field_error("seconds", f"a number of seconds up to {MAX_SECONDS}")
    protected = fields.get("protected")
    if protected is not None and not isinstance(protected, bool):
        raise _make_field_error("protected", "true or false")
    if protected:
        needs["protected"] = True
    slug = backend or "any"
    if backend != "cpu" and memory:
        slug += f"-{_find_class(memory)}g"
    return Demand(queue=queue_names.make_queue_name(KIND, slug), needs=needs)


def _is_amount(value: Json, most: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def find_fields(effects: Sequence[Effect]) -> Mapping[str, Any]:
    """Return the fields of the first `Gpu` effect, none if there is no such effect."""
    return next((each.fields for each in effects if each.effect == EFFECT), {})


def find_seconds(effects: Sequence[Effect]) -> float | None:
    """Return the seconds that a `Gpu` effect declares, None if there is none."""
    seconds = find_fields(effects).get("seconds")
    return None if seconds is None else float(seconds)


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
    elif capability.backend != SERVER:
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
    usable = capability.memory_mb if capability.usable_mb is None else capability.usable_mb
    if usable < memory:
        kept = capability.memory_mb - usable
        rest = f", {kept} of them kept free" if kept else ""
        return f"needs {memory} MB, {capability.device} has {capability.memory_mb} MB{rest}"
    module = demand.needs.get("module")
    if module is not None and module not in capability.modules:
        return f"its machine does not have the stages of {module} (GRIDQ_STAGES)"
    if demand.needs.get("protected") and not capability.protected:
        return "its owner takes no protected stages"
    wanted = demand.needs.get("compute_cap")
    if wanted and not meets_compute(wanted, capability.compute_cap):
        has = capability.compute_cap or "none that its driver reports"
        return f"needs compute capability {wanted}, {capability.device} has {has}"
    return ""


def meets_compute(wanted: str, has: str | None) -> bool:
    """Return whether a device of compute capability `has`, None if it has none, is at least of `wanted`."""
    return has is not None and parse_compute_cap(has) >= parse_compute_cap(wanted)


def _find_class(memory_mb: float) -> int:
    for size in MEMORY_CLASSES_GB:
        if memory_mb <= size * 1024:
            return size
    raise _make_field_error("memory_mb", f"at most {MEMORY_CLASSES_GB[-1] * 1024}, the largest class")


def _make_field_error(field: str, expected: str) -> InvalidField:
    return InvalidField(
        f"A Gpu effect's {field} is not valid", {"path": f"effects.{field}", "expected": expected}
    )
