"""Read the header of a GGUF file: enough to check the file and to compute what the model needs.

The layout is that of llama.cpp's `docs/gguf.md`: a magic, counts, metadata, one entry for each tensor, then
the tensors' data. Nothing but the header is read, so that a file of any size takes milliseconds.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from gridq.errors import ModelFileDamaged, ModelFileError, ModelFileTruncated, ModelPartMissing

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ITEMS = 1_000_000
"""More entries than any real header has: a count above it is that of a corrupt file."""

STRING, ARRAY = 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The numbers among the types of metadata, as `struct` names them."""

BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Elements and bytes of a block of each tensor type (`ggml_type`). Other types are newer than this."""

NO_MODELS = {
    "adapter": "a LoRA adapter",
    "mmproj": "the image part of a model",
    "imatrix": "an importance matrix",
}
"""Values of `general.type` of files that no engine loads as a model."""

COUNTS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "pooling_type",
)  # fmt: skip
"""The fields of an architecture that are computed with. Each is a number, or one for each layer."""

MAX_COUNT = 2**31
MAX_LAYERS = 10_000
"""More than any real model has."""

SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf$")
CACHED_FILES = 256


@dataclass(frozen=True)
class GgufHeader:
    """The header of a model, all parts of a split file together.

    `metadata` has no arrays longer than one value for each layer. `tensor_bytes` are the weights. `digest`
    identifies the model by its header and sizes, without reading its data.
    """

    metadata: dict[str, Any]
    tensor_bytes: int
    vocabulary: int
    digest: str
    files: tuple[Path, ...] = field(default=())

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def trained_context(self) -> int | None:
        """The context that the model was trained with, None if the file does not say."""
        return self.get_number("context_length") or None

    def get_number(self, name: str) -> int | None:
        """Return a number of the architecture, such as `block_count`; the highest of an array."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, list):
            value = max(value, default=None)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def get_head_sizes(self) -> tuple[int, int]:
        """Return how many elements the key and the value of a head have."""
        heads = self.get_number("attention.head_count") or 1
        default = (self.get_number("embedding_length") or 0) // heads
        names = ("attention.key_length", "attention.value_length")
        key, value = (self.get_number(name) or default for name in names)
        return key, value

    def get_layers(self, name: str, default: int) -> list[int]:
        """Return a number for each layer, whether the file states one for all or an array."""
        layers = self.get_number("block_count") or 0
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        return [int(each) for each in value] if isinstance(value, list) else [int(value)] * layers


def read_gguf(path: Path, model: str) -> GgufHeader:
    """Return the header of the model in `path`, cached by size and modification time.

    Raises ModelFileError if the file, or a part of a split one, is missing, truncated, corrupt or no model.
    """
    headers = []
    for part in _list_parts(path, model):
        try:
            stat = part.stat()
        except OSError as exc:
            raise make_file_error(
                model, part, "cannot be read", exc.strerror or "", "put the file there, or correct 'file'"
            ) from None
        headers.append(_read_part(part, stat.st_size, stat.st_mtime_ns, model))
    first = headers[0]
    return GgufHeader(
        metadata=first.metadata,
        tensor_bytes=sum(each.tensor_bytes for each in headers),
        vocabulary=first.vocabulary,
        digest=hashlib.sha256("".join(each.digest for each in headers).encode()).hexdigest(),
        files=tuple(file for each in headers for file in each.files),
    )


def make_file_error(
    model: str, path: Path, what: str, reason: str, fix: str, *, kind: type[ModelFileError] = ModelFileError
) -> ModelFileError:
    """Return the error of a file that cannot be used: what is wrong, why, and what to do."""
    return kind(
        f"The file of the model {model!r} {what}",
        {"model": model, "path": str(path), "reason": reason, "fix": fix},
    )


def _list_parts(path: Path, model: str) -> list[Path]:
    """Return the files of a model, which llama.cpp names `…-00001-of-00003.gguf` if there are several."""
    split = SPLIT_NAME.match(path.name)
    if split is None:
        return [path]
    parts = int(split["parts"])
    if int(split["part"]) != 1:
        first = f"{split['stem']}-00001-of-{split['parts']}.gguf"
        raise make_file_error(
            model,
            path,
            "is not the first part of its split file",
            path.name,
            f"set file to …/{first}",
            kind=ModelPartMissing,
        )
    found = [path.with_name(f"{split['stem']}-{n:05d}-of-{split['parts']}.gguf") for n in range(1, parts + 1)]
    missing = [part.name for part in found if not part.is_file()]
    if missing:
        raise make_file_error(
            model,
            path,
            f"lacks {len(missing)} of its {parts} parts",
            "missing: " + ", ".join(missing[:5]) + (" …" if len(missing) > 5 else ""),
            f"download the missing parts into {path.parent}",
            kind=ModelPartMissing,
        )
    return found


@lru_cache(maxsize=CACHED_FILES)
def _read_part(path: Path, size: int, modified: int, model: str) -> GgufHeader:
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise make_file_error(
                    model, path, "is not a GGUF file", "it does not begin with GGUF", "download it again"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data, path, size, model).read()
    except OSError as exc:
        raise make_file_error(
            model, path, "cannot be read", exc.strerror or "", "give the worker's user read permission"
        ) from None


class _Reader:
    """Walks through the header of one file."""

    def __init__(self, data: mmap.mmap, path: Path, size: int, model: str) -> None:
        self._data, self._path, self._size, self._model = data, path, size, model
        self._at = 4
        self._lengths: dict[str, int] = {}  # of the arrays that are not kept

    def read(self) -> GgufHeader:
        try:
            return self._read()
        except (struct.error, IndexError):
            raise self._make_truncated_error("its header is incomplete") from None
        except (ValueError, TypeError, OverflowError, KeyError, RecursionError) as exc:
            reason = f"{type(exc).__name__}: {exc}"[:200]
            raise self._make_error("is corrupt", reason, "download it again", ModelFileDamaged) from None

    def _read(self) -> GgufHeader:
        (version,) = self._unpack("I")
        if version not in VERSIONS:
            raise self._make_error(
                "has a version that is not supported",
                f"GGUF version {version}, expected {' or '.join(map(str, VERSIONS))}",
                "convert it with a current llama.cpp, or download a newer file",
            )
        tensors, pairs = self._unpack("QQ")
        if tensors > MAX_ITEMS or pairs > MAX_ITEMS:
            raise ValueError(f"it states {tensors} tensors and {pairs} fields")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            name = self._read_string()
            (kind,) = self._unpack("I")
            value = self._read_value(kind, name)
            if value is not None:
                metadata[name] = value
        self._check_model(metadata)
        self._check_counts(metadata)
        sizes = list(self._read_tensors(tensors))
        alignment = _check_count("general.alignment", metadata.get("general.alignment", 32)) or 32
        start = math.ceil(self._at / alignment) * alignment
        end = max((start + offset + size for offset, size in sizes), default=start)
        if end > self._size:
            missing = math.ceil((end - self._size) / 2**20)
            raise self._make_truncated_error(f"{missing} MB are missing at its end")
        digest = hashlib.sha256(self._data[: self._at])
        digest.update(str(self._size).encode())
        return GgufHeader(
            metadata=metadata,
            tensor_bytes=sum(size for _, size in sizes),
            vocabulary=self._lengths.get("tokenizer.ggml.tokens", 0),
            digest=digest.hexdigest(),
            files=(self._path,),
        )

    def _check_model(self, metadata: dict[str, Any]) -> None:
        is_later_part = _check_count("split.no", metadata.get("split.no", 0)) > 0
        kind = str(metadata.get("general.type", "model"))
        if kind in NO_MODELS:
            raise self._make_error(
                "is not a model", f"it is {NO_MODELS[kind]}", "set file to the model that it belongs to"
            )
        if not metadata.get("general.architecture") and not is_later_part:
            raise self._make_error(
                "is not a model", "it states no architecture", "set file to a GGUF file of a language model"
            )

    def _check_counts(self, metadata: dict[str, Any]) -> None:
        """Raise ValueError if a field that is computed with has no sensible value."""
        architecture = metadata.get("general.architecture")
        for name in COUNTS:
            value = metadata.get(f"{architecture}.{name}", 0)
            for each in value if isinstance(value, list) else [value]:
                _check_count(name, each)
            if name == "block_count" and (isinstance(value, list) or value > MAX_LAYERS):
                raise ValueError(f"block_count is {value}")

    def _read_tensors(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the offset of each tensor in the data, and its size, 0 if its type is not known."""
        for _ in range(count):
            self._read_string()
            (dimensions,) = self._unpack("I")
            if dimensions > 8:
                raise ValueError(f"a tensor has {dimensions} dimensions")
            shape = self._unpack("Q" * dimensions)
            kind, offset = self._unpack("IQ")
            elements, size = BLOCKS.get(kind, (1, 0))
            yield offset, math.prod(shape) // elements * size

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return found

    def _read_string(self) -> str:
        (length,) = self._unpack("Q")
        if length > self._size - self._at:
            raise IndexError
        text = self._data[self._at : self._at + length]
        self._at += length
        return text.decode("utf-8", "replace")

    def _read_value(self, kind: int, name: str) -> Any:
        """Return a value, None for an array that is longer than one value for each layer."""
        if kind == STRING:
            return self._read_string()
        if kind != ARRAY:
            return self._unpack(FORMATS[kind])[0]
        item, count = self._unpack("IQ")
        if count > self._size:
            raise IndexError
        self._lengths[name] = count
        if item == STRING:
            data, at = self._data, self._at
            unpack = struct.Struct("<Q").unpack_from
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
            if at > self._size:
                raise IndexError
            self._at = at
            return None
        layout = f"{count}{FORMATS[item]}"
        if count > 4096:
            self._at += struct.calcsize("<" + layout)
            return None
        return list(self._unpack(layout))

    def _make_truncated_error(self, reason: str) -> ModelFileError:
        fix = "download it again; the last download broke off"
        return self._make_error("is truncated", reason, fix, ModelFileTruncated)

    def _make_error(
        self, what: str, reason: str, fix: str, kind: type[ModelFileError] = ModelFileError
    ) -> ModelFileError:
        return make_file_error(self._model, self._path, what, reason, fix, kind=kind)


def _check_count(name: str, value: object) -> int:
    """Return a count. Raises ValueError if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return int(value)
