"""Graph files and inputs as a command reads them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from gridq.cli.inputs import apply_stages_option, parse_seconds, read_graph, read_input
from gridq.config.settings import Settings
from gridq.errors import ConfigError, InvalidJson


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, None),
        ("null", None),
        ('{"a": [1, 2.5, "ü"]}', {"a": [1, 2.5, "ü"]}),
        ("123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_an_input_is_json_on_the_command_line(text: str | None, value: Any) -> None:
    assert read_input(text) == value


def test_an_input_is_json_in_a_file_or_on_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "in.json"
    file.write_text('\ufeff{"ü": 1}', encoding="utf-8")
    assert read_input(f"@{file}") == {"ü": 1}
    stdin(monkeypatch, '["ü"]'.encode())
    assert read_input("-") == ["ü"]


@pytest.mark.parametrize("text", ["{", "", "NaN", "[1, Infinity]", "{'a': 1}", '{"a": 1, "a": 2}'])
def test_invalid_json_names_the_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_input(text)
    assert caught.value.path == "--input"
    assert caught.value.reason


def test_a_bare_word_and_a_file_name_suggest_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_input("Oslo")
    assert caught.value.fix == "write --input '\"Oslo\"'"
    Path("notes.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        read_input("notes.json")
    assert caught.value.fix == "write --input @notes.json"


def test_deep_nesting_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 200_000)
    with pytest.raises(ConfigError) as caught:
        read_input(f"@{file}")
    assert caught.value.path == str(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_graph(str(tmp_path / "none.json"))
    assert caught.value.path == str(tmp_path / "none.json")
    assert caught.value.reason == "No such file or directory"


def test_a_graph_that_is_not_utf8_is_not_json(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_bytes(b"\xff\xfe{")
    with pytest.raises(InvalidJson):
        read_graph(str(file))


def test_a_graph_comes_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b'{"root": {}}')
    assert read_graph("-") == '{"root": {}}'


def test_the_stages_option_must_be_a_folder(tmp_path: Path) -> None:
    config = Settings(home=tmp_path)
    assert apply_stages_option(config, None) is config
    assert apply_stages_option(config, tmp_path).stages_dir == tmp_path
    with pytest.raises(ConfigError) as caught:
        apply_stages_option(config, tmp_path / "none")
    assert caught.value.path == "--stages"


@pytest.mark.parametrize("text", ["", "0", "-1h", "31d"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_seconds(text, "--ttl", 1, 30 * 86_400)
