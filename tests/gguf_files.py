"""Write small GGUF files: real headers, with as much data as they state."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

ALIGNMENT = 32


def write_gguf(
    path: Path,
    *,
    architecture: str | None = "llama",
    context: int = 4096,
    tensors: int = 1,
    elements: int = 32,
    version: int = 3,
    cut: int = 0,
    **metadata: Any,
) -> Path:
    """Write a file with `tensors` tensors of `elements` floats, less the last `cut` bytes. Return `path`."""
    fields: dict[str, Any] = {} if architecture is None else {"general.architecture": architecture}
    if architecture is not None:
        fields |= {
            f"{architecture}.context_length": context,
            f"{architecture}.block_count": 2,
            f"{architecture}.embedding_length": 64,
            f"{architecture}.feed_forward_length": 128,
            f"{architecture}.attention.head_count": 4,
            f"{architecture}.attention.head_count_kv": 2,
        }
    fields |= metadata
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(fields))
    for name, value in fields.items():
        head += _pack_string(name) + _pack_value(value)
    for number in range(tensors):
        head += _pack_string(f"blk.{number}.weight")
        head += struct.pack("<IQIQ", 1, elements, 0, number * elements * 4)
    head += b"\0" * (-len(head) % ALIGNMENT)
    data = head + b"\0" * (tensors * elements * 4)
    path.write_bytes(data[: len(data) - cut])
    return path


def _pack_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _pack_value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _pack_string(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_pack_string, value))
    if isinstance(value, list) and value and isinstance(value[0], float):
        return struct.pack("<IIQ", 9, 12, len(value)) + struct.pack(f"<{len(value)}d", *value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if value < 0:
        return struct.pack("<Iq", 11, value)
    if value > 2**32 - 1:
        return struct.pack("<IQ", 10, value)
    return struct.pack("<II", 4, value)
