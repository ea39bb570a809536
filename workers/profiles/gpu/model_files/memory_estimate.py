"""Estimate the memory of a pulled model from the header of its file."""

from __future__ import annotations

from collections.abc import Mapping

from gridq.protocol.models import Json
from workers.profiles.gpu.engines import selection
from workers.profiles.gpu.memory.gguf_file import read_gguf
from workers.profiles.gpu.memory.model_needs import compute_need
from workers.profiles.gpu.model_files.local_models import LocalModel
from workers.profiles.gpu.model_process import LoadOrder


def estimate_memory(model: LocalModel, table: Mapping[str, Json]) -> tuple[int, int]:
    """Return what a model takes in the machine's memory with its context in each slot, in MB, and the slots:
    as many as a device of this machine has by its `[gpu]` table.

    Raises ModelFileError if its file is damaged, and ConfigError for a wrong table.
    """
    engine, _ = selection.choose_engine()
    stated = table.get("concurrency")
    slots = selection.choose_concurrency(stated if isinstance(stated, int) else None, engine)
    order = LoadOrder(
        model=model.name,
        engine="",
        path=model.path,
        context=model.context,
        concurrency=slots,
        threads=1,
        gpu_layers=0,
        embeddings=bool(model.embeddings),
        devices={},
    )
    return compute_need(order, read_gguf(model.path, model.name)).device_mb, slots
