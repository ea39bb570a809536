"""What the header of a GGUF file says, and what is wrong with files that no engine can load."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import ModelFileError
from tests.gguf_files import write_gguf
from workers.profiles.gpu.memory import gguf_file
from workers.profiles.gpu.memory.gguf_file import read_gguf


def test_a_header_states_what_a_model_needs(tmp_path: Path):
    tokens = [f"t{number}" for number in range(5000)]
    path = write_gguf(tmp_path / "m.gguf", tensors=3, elements=64, **{"tokenizer.ggml.tokens": tokens})
    header = read_gguf(path, "m")
    assert (header.architecture, header.trained_context) == ("llama", 4096)
    assert header.tensor_bytes == 3 * 64 * 4
    assert header.vocabulary == 5000
    assert header.get_layers("attention.head_count_kv", 4) == [2, 2]


@pytest.mark.parametrize(
    "value",
    [-1, 2**32 - 1, 2**64 - 1, math.inf, -math.inf, math.nan, 1e300, "x", [math.inf], [math.nan]],
)
@pytest.mark.parametrize(
    "name", ["general.alignment", "split.no", *(f"llama.{count}" for count in gguf_file.COUNTS)]
)
def test_what_is_no_count_is_damage(tmp_path: Path, name: str, value: Any):
    """A model's memory is computed from these numbers: none may make it negative, or fail, or take hours."""
    path = write_gguf(tmp_path / "m.gguf", **{name: value})
    with pytest.raises(ModelFileError) as caught:
        read_gguf(path, "m")
    assert caught.value.code in ("model.damaged", "model.truncated")


def test_a_context_of_zero_is_not_known(tmp_path: Path):
    assert read_gguf(write_gguf(tmp_path / "m.gguf", context=0), "m").trained_context is None


def test_a_list_in_place_of_a_name_is_damage(tmp_path: Path):
    with pytest.raises(ModelFileError):
        read_gguf(write_gguf(tmp_path / "m.gguf", **{"general.type": [], "general.architecture": []}), "m")


def test_a_number_of_each_layer_is_read(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf", **{"llama.attention.head_count_kv": [2, 0]})
    assert read_gguf(path, "m").get_layers("attention.head_count_kv", 4) == [2, 0]


def test_other_models_have_other_digests(tmp_path: Path):
    same = [write_gguf(tmp_path / f"{name}.gguf") for name in "ab"]
    other = write_gguf(tmp_path / "c.gguf", elements=64)
    digests = [read_gguf(path, "m").digest for path in (*same, other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_changed_file_is_read_again(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf", context=2048)
    assert read_gguf(path, "m").trained_context == 2048
    write_gguf(path, context=8192, elements=64)
    assert read_gguf(path, "m").trained_context == 8192


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cut": 64}, "model.truncated"),
        ({"cut": 128 + 200}, "model.truncated"),
        ({"version": 9}, "model.file"),
        ({"architecture": None}, "model.file"),
        ({"general.type": "adapter"}, "model.file"),
        ({"general.type": "mmproj"}, "model.file"),
    ],
)
def test_a_file_that_no_engine_loads_is_named_with_the_fix(tmp_path: Path, fields: dict[str, Any], code: str):
    path = write_gguf(tmp_path / "m.gguf", **fields)
    with pytest.raises(ModelFileError) as caught:
        read_gguf(path, "mine")
    assert caught.value.code == code
    assert caught.value.details["path"] == str(path)
    assert caught.value.details["model"] == "mine"
    assert caught.value.fix
    assert caught.value.reason


@pytest.mark.parametrize("data", [b"", b"GG", b"PK\3\4" * 100, b"GGUF", b"GGUF" + b"\xff" * 4000])
def test_nonsense_is_no_gguf_file(tmp_path: Path, data: bytes):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        read_gguf(path, "m")
    assert caught.value.fix


def test_a_header_that_makes_no_sense_is_damage(tmp_path: Path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1) + bytes(100))
    with pytest.raises(ModelFileError) as caught:
        read_gguf(path, "m")
    assert caught.value.code == "model.damaged"


def test_every_cut_of_a_file_is_an_error_and_never_a_crash(tmp_path: Path):
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            read_gguf(path, "m")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_gguf(tmp_path / "gone.gguf", "m")


def test_a_split_file_is_read_whole(tmp_path: Path):
    for part in (1, 2, 3):
        fields: dict[str, Any] = {"split.no": part - 1, "split.count": 3}
        write_gguf(
            tmp_path / f"m-{part:05d}-of-00003.gguf",
            architecture="llama" if part == 1 else None,
            tensors=part,
            **fields,
        )
    header = read_gguf(tmp_path / "m-00001-of-00003.gguf", "m")
    assert header.tensor_bytes == (1 + 2 + 3) * 32 * 4
    assert len(header.files) == 3


def test_a_missing_part_of_a_split_file_is_named(tmp_path: Path):
    first = write_gguf(tmp_path / "m-00001-of-00003.gguf", **{"split.count": 3})
    write_gguf(tmp_path / "m-00002-of-00003.gguf", **{"split.no": 1})
    with pytest.raises(ModelFileError) as caught:
        read_gguf(first, "m")
    assert caught.value.code == "model.part_missing"
    assert "m-00003-of-00003.gguf" in (caught.value.reason or "")


def test_a_later_part_is_not_the_file_to_name(tmp_path: Path):
    write_gguf(tmp_path / "m-00002-of-00002.gguf", **{"split.no": 1})
    with pytest.raises(ModelFileError) as caught:
        read_gguf(tmp_path / "m-00002-of-00002.gguf", "m")
    assert caught.value.code == "model.part_missing"
    assert "m-00001-of-00002.gguf" in (caught.value.fix or "")
