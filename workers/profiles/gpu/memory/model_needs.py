"""How much memory a model needs: measured before, else by llama.cpp's dry run, else by the file's header.

What was measured is kept in a file of the home folder, for each model, context, number of slots, type of the
KV cache, engine build and device.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gridq.config.locked_json import read_json, update_json
from workers.profiles.gpu.engines.base import KV_TYPES
from workers.profiles.gpu.memory.dry_run import DryRun, dry_run
from workers.profiles.gpu.memory.gguf_file import GgufHeader
from workers.profiles.gpu.model_process import UNKNOWN_ARCHITECTURE, LoadOrder, make_architecture_error

STATE_FILE = "model_memory.json"
MAX_ENTRIES = 256

MB = 1024 * 1024
CONTEXT_STEP = 256
"""llama.cpp rounds the context of a slot up to a multiple of it."""

BATCH_TOKENS = 512
EMBEDDING_BATCH_TOKENS = 2048
"""Tokens of one physical batch, for text and for embeddings: they decide on the compute buffers."""

PROCESS_MB = 64
"""A process without a model: Python, the engine's code, threads. Measured: 54 to 61 MB."""

WORKING_MB = 32
"""What a process takes beyond its buffers once it works: measured 16 MB, for tokens, samplers, sockets."""

GPU_CONTEXT_MB = 600
"""What a driver takes for each process on a GPU, until it is measured: 300 to 600 MB with CUDA."""

Source = Literal["measured", "dry run", "header"]


@dataclass(frozen=True)
class Need:
    """Memory that a loaded model needs, in MB: on its device, and in the machine's memory beside a GPU."""

    device_mb: int
    host_mb: int = 0
    source: Source = "header"
    load_seconds: float | None = None

    def combine(self, other: Need) -> Need:
        """Return the larger of both, of each kind of memory. The source stays."""
        return Need(
            max(self.device_mb, other.device_mb),
            max(self.host_mb, other.host_mb),
            self.source,
            self.load_seconds,
        )


class ModelNeeds:
    """The needs of models, as far as they are known in the home folder `home`."""

    def __init__(self, home: Path) -> None:
        self._path = home / STATE_FILE
        self._sizeless: set[str] = set()  # what a dry run of this process printed no sizes for

    def find(self, order: LoadOrder, header: GgufHeader, device: str, build: str) -> Need:
        """Return the best that is known without starting anything. `device`: a UUID, or `cpu`."""
        entry = read_json(self._path).get(_make_key(order, header, device, build), {})
        return _choose(entry, order, header)

    def determine(
        self, order: LoadOrder, header: GgufHeader, device: str, build: str, *, can_dry_run: bool
    ) -> Need:
        """Return the need of a load that is about to begin. Runs a dry run, once, if that would tell more.

        Raises ModelFileError if the engine does not know the model's architecture.
        """
        key = _make_key(order, header, device, build)
        entry = read_json(self._path).get(key)
        known = entry if isinstance(entry, dict) else {}
        is_measured_gpu = "measured" in known and order.gpu_layers != 0
        if can_dry_run and "dry" not in known and not is_measured_gpu and key not in self._sizeless:
            found = dry_run(order)
            if UNKNOWN_ARCHITECTURE.search(found.reason):
                raise make_architecture_error(order, found.reason)
            if found.reason:
                self._sizeless.add(key)  # who waits for room asks again and again
            else:
                need = _convert(found, order)
                known = self._store(key, dry=[need.device_mb, need.host_mb])
        return _choose(known, order, header)

    def record(
        self,
        order: LoadOrder,
        header: GgufHeader,
        device: str,
        build: str,
        *,
        device_mb: int,
        host_mb: int = 0,
        load_seconds: float | None = None,
    ) -> None:
        """Remember what a loaded model was measured to take, its highest value, and how long it loaded."""
        key = _make_key(order, header, device, build)
        fields: dict[str, Any] = {"measured": [device_mb, host_mb]}
        if load_seconds is not None:
            fields["load_seconds"] = round(load_seconds, 3)
        self._store(key, **fields)

    def _store(self, key: str, **fields: Any) -> dict[str, Any]:
        entry: dict[str, Any] = dict(fields)
        with contextlib.suppress(OSError), update_json(self._path) as entries:  # it is only measured again
            known = entries.get(key)
            known = known if isinstance(known, dict) else {}
            before = _parse_pair(known.get("measured"))
            if "measured" in fields and before is not None:
                fields["measured"] = [max(pair) for pair in zip(before, fields["measured"], strict=True)]
            entry = entries[key] = {**known, **fields, "at": round(time.time())}
            while len(entries) > MAX_ENTRIES:
                del entries[min(entries, key=lambda each: _get_time(entries[each]))]
        return entry


def compute_need(order: LoadOrder, header: GgufHeader) -> Need:
    """Return what the file's header says a load needs: weights, KV cache and compute buffers.

    The KV cache follows llama.cpp: for each layer and slot, keys and values of the context. Compute buffers
    depend on the engine's graph; the sum of the largest activations of a batch is an upper bound of them.
    """
    weights = header.tensor_bytes
    cells = -(-order.context // CONTEXT_STEP) * CONTEXT_STEP * order.concurrency
    heads = header.get_number("attention.head_count") or 1
    embedding = header.get_number("embedding_length") or 0
    key, value = header.get_head_sizes()
    kv_heads = sum(header.get_layers("attention.head_count_kv", heads))
    _, block, block_bytes = KV_TYPES[order.kv_type]
    cache = cells * kv_heads * (key + value) * block_bytes // block
    batch = min(order.context, EMBEDDING_BATCH_TOKENS) if order.embeddings else BATCH_TOKENS
    outputs = batch if order.embeddings else order.concurrency
    forward = header.get_number("feed_forward_length") or 4 * embedding
    activations = 4 * batch * (2 * forward + 8 * embedding)
    logits = 4 * outputs * header.vocabulary
    buffers = -(-(weights + cache + activations + logits) // MB)
    return (
        _add_process(buffers, 0, PROCESS_MB, order)
        if order.gpu_layers == 0
        else _add_process(buffers, weights // 10 // MB, PROCESS_MB, order)
    )


def _convert(found: DryRun, order: LoadOrder) -> Need:
    if order.gpu_layers == 0:
        return _add_process(found.device_mb + found.host_mb, 0, found.process_mb, order)
    return _add_process(found.device_mb, found.host_mb, found.process_mb, order)


def _add_process(device_mb: int, host_mb: int, process_mb: int, order: LoadOrder) -> Need:
    """Return a need with what the process itself takes, and the prompts that it keeps."""
    own_mb = process_mb + WORKING_MB + order.prompt_cache_mb
    if order.gpu_layers == 0:
        return Need(device_mb + own_mb)
    return Need(device_mb + GPU_CONTEXT_MB, host_mb + own_mb)


def _choose(entry: Any, order: LoadOrder, header: GgufHeader) -> Need:
    """Return the need that an entry of the state file states, else that of the header.

    On the CPU, a process touches its buffers only as it uses them, so what was measured may be less than what
    the next request needs: there the dry run is the least.
    """
    entry = entry if isinstance(entry, dict) else {}
    seconds = entry.get("load_seconds")
    seconds = float(seconds) if isinstance(seconds, int | float) else None
    dry, measured = _parse_pair(entry.get("dry")), _parse_pair(entry.get("measured"))
    if measured is not None:
        need = Need(*measured, "measured", seconds)
        if order.gpu_layers != 0:
            return need
        return need.combine(Need(*dry)) if dry is not None else need.combine(compute_need(order, header))
    if dry is not None:
        return Need(*dry, "dry run", seconds)
    return compute_need(order, header)


def _parse_pair(value: Any) -> tuple[int, int] | None:
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, int) and each >= 0 for each in value)
    ):
        return value[0], value[1]
    return None


def _get_time(entry: Any) -> float:
    at = entry.get("at") if isinstance(entry, dict) else None
    return float(at) if isinstance(at, int | float) else 0.0


def _make_key(order: LoadOrder, header: GgufHeader, device: str, build: str) -> str:
    shape = f"{order.context}x{order.concurrency}"
    use = "embeddings" if order.embeddings else "text"
    cache = f"{order.kv_type}+{order.prompt_cache_mb}"
    return " ".join((header.digest[:16], shape, use, cache, order.engine, build, device))
