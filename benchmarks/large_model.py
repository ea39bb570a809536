"""Write a large model that an engine loads: a small one whose layers are repeated.

The answers of such a model mean nothing; its size, and the time of its load, are those of a real one.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import BinaryIO

from workers.profiles.gpu.memory.gguf_file import BLOCKS

ALIGNMENT = 32
MAX_LAYERS = 500
"""llama.cpp loads at most 512."""


def write_large_model(small: Path, large: Path, megabytes: int) -> None:
    """Write the model `small` to `large` with as many layers as make about `megabytes` (of 10⁶ bytes)."""
    with small.open("rb") as file:
        source = Source(file)
        layer_bytes = sum(size for name, _, size in source.tensors if name.startswith("blk.0."))
        rest = sum(size for name, _, size in source.tensors if not name.startswith("blk."))
        layers = min(MAX_LAYERS, max(source.layers, (megabytes * 1_000_000 - rest) // layer_bytes))
        chosen: list[tuple[str, bytes, int, int]] = []
        for name, info, size in source.tensors:
            if not name.startswith("blk."):
                chosen.append((name, info, source.offsets[name], size))
        for layer in range(layers):
            of = f"blk.{layer % source.layers}."
            for name, info, size in source.tensors:
                if name.startswith(of):
                    chosen.append((f"blk.{layer}.{name.removeprefix(of)}", info, source.offsets[name], size))
        with large.open("wb") as out:
            head = b"GGUF" + struct.pack("<IQQ", 3, len(chosen), source.pairs)
            head += source.metadata(layers)
            at = 0
            for name, info, _, size in chosen:
                head += struct.pack("<Q", len(name)) + name.encode() + info + struct.pack("<Q", at)
                at += size + -size % ALIGNMENT
            out.write(head + b"\0" * (-len(head) % ALIGNMENT))
            for _, _, offset, size in chosen:
                file.seek(offset)
                out.write(file.read(size) + b"\0" * (-size % ALIGNMENT))


class Source:
    """The header of a small model: its metadata as bytes, and where its tensors stand."""

    def __init__(self, file: BinaryIO) -> None:
        self._data = data = file.read()
        _, count, self.pairs = struct.unpack_from("<IQQ", data, 4)
        self._begin = at = 24
        match = re.search(rb"\.block_count\x04\x00\x00\x00", data)
        assert match is not None
        self._layers_at = match.end()
        (self.layers,) = struct.unpack_from("<I", data, self._layers_at)
        first = re.search(rb"(?:token_embd|output|blk\.\d+)[a-z_.]*\.weight\x01|token_embd\.weight", data)
        assert first is not None
        self._end = at = first.start() - 8
        self.tensors: list[tuple[str, bytes, int]] = []
        self.offsets: dict[str, int] = {}
        relative: dict[str, int] = {}
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", data, at)
            name = data[at + 8 : at + 8 + length].decode()
            at += 8 + length
            (dimensions,) = struct.unpack_from("<I", data, at)
            shape = struct.unpack_from(f"<{dimensions}Q", data, at + 4)
            kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * dimensions)
            end = at + 4 + 8 * dimensions + 4
            elements, size = BLOCKS[kind]
            total = 1
            for each in shape:
                total *= each
            self.tensors.append((name, data[at:end], total // elements * size))
            relative[name] = offset
            at = end + 8
        start = at + -at % ALIGNMENT
        self.offsets = {name: start + offset for name, offset in relative.items()}

    def metadata(self, layers: int) -> bytes:
        """Return the metadata with another number of layers."""
        at = self._layers_at
        return self._data[self._begin : at] + struct.pack("<I", layers) + self._data[at + 4 : self._end]
