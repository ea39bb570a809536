"""Estimate the memory of a pulled model from the header of its file."""

from __future__ import annotations

from workers.profiles.gpu.memory.gguf_file import read_gguf
from workers.profiles.gpu.memory.model_needs import compute_need
from workers.profiles.gpu.model_files.local_models import LocalModel
from workers.profiles.gpu.model_process import LoadOrder


def estimate_memory_mb(model: LocalModel, slots: int) -> int:
    """Return what a model takes in the machine's memory with its context on each of `slots`, in MB.

    Raises ModelFileError if its file is damaged.
    """
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
    return compute_need(order, read_gguf(model.path, model.name)).device_mb
