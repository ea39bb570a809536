"""Handoff files: which engines they announce, and what is wrong with those that announce none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.profiles.gpu.running_engines.engine_table import EngineTable
from workers.profiles.gpu.running_engines.handoff_files import FOLDER, read_handoffs


def write(home: Path, name: str, value: Any) -> Path:
    path = home / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_file_announces_an_engine(tmp_path: Path) -> None:
    write(
        tmp_path,
        "Pool-a.json",
        {
            "url": "http://127.0.0.1:9/v1",
            "slots": 3,
            "models": ["m"],
            "engine": "llamacpp",
            "device_mask": "0",
        },
    )
    write(tmp_path, "half.json.tmp", "{")
    [handoff], problems = read_handoffs(tmp_path, ())
    assert problems == []
    assert (handoff.name, handoff.table.root, handoff.table.concurrency) == (
        "pool-a",
        "http://127.0.0.1:9",
        3,
    )
    assert [model.name for model in handoff.table.models] == ["m"]


def test_what_it_announces_changes_with_its_content(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", {"url": "http://127.0.0.1:9"})
    [before], _ = read_handoffs(tmp_path, ())
    path.write_text(json.dumps({"url": "http://127.0.0.1:10"}))
    [after], _ = read_handoffs(tmp_path, ())
    assert before.announcement != after.announcement


def test_without_a_folder_there_are_none(tmp_path: Path) -> None:
    assert read_handoffs(tmp_path, ()) == ([], [])


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ('{"url": ', "JSON"),
        ("[]", "object"),
        ({}, "url"),
        ({"url": "http://192.0.2.1:9"}, "url"),
        ({"url": "http://127.0.0.1:99999"}, "url"),
        ({"url": "http://127.0.0.1:0"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": "http://127.0.0.1:9", "slots": 0}, "concurrency"),
        ({"url": "http://127.0.0.1:9", "name": "Not OK"}, "name"),
        ("x" * 70_000, "bytes"),
    ],
)
def test_a_broken_file_is_one_clear_sentence(tmp_path: Path, value: Any, word: str) -> None:
    path = write(tmp_path, "a.json", value)
    found, [problem] = read_handoffs(tmp_path, ())
    assert found == []
    assert str(path) in problem
    assert word in problem


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (os.mkfifo, "not a file"),  # to read it would wait for a writer
        (Path.mkdir, "not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a file"),
        (lambda path: path.symlink_to(path), "cannot be read"),
        (lambda path: path.touch() or os.truncate(path, 10**12), "bytes"),
    ],
    ids=["pipe", "folder", "endless device", "link to itself", "huge"],
)
def test_what_is_no_small_file_is_one_clear_sentence(
    tmp_path: Path, make: Callable[[Path], object], word: str
) -> None:
    path = tmp_path / FOLDER / "a.json"
    path.parent.mkdir(parents=True)
    make(path)
    found, [problem] = read_handoffs(tmp_path, ())
    assert found == []
    assert word in problem


def test_a_link_to_a_file_announces_as_the_file_does(tmp_path: Path) -> None:
    """Some systems link to the current version of a file."""
    target = tmp_path / "target"
    target.write_text(json.dumps({"url": "http://127.0.0.1:9"}))
    path = tmp_path / FOLDER / "a.json"
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    [handoff], _ = read_handoffs(tmp_path, ())
    assert handoff.name == "a"
    target.unlink()
    assert read_handoffs(tmp_path, ()) == ([], [])


def test_the_seats_file_and_the_first_file_have_precedence(tmp_path: Path) -> None:
    write(tmp_path, "a.json", {"url": "http://127.0.0.1:9"})
    write(tmp_path, "b.json", {"url": "http://localhost:9"})
    write(tmp_path, "c.json", {"url": "http://127.0.0.1:10"})
    found, problems = read_handoffs(tmp_path, (EngineTable(url="http://127.0.0.1:10", name="mine"),))
    assert [each.name for each in found] == ["a"]
    assert len(problems) == 2
