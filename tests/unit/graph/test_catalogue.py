"""Catalogued stages: their ids, the resolution of references, stage files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import AmbiguousStage, ConfigError, GraphError, InvalidField, MissingField, UnknownStage
from gridq.graph.catalogue import Catalogue, StageSpec, hash_implementation, load_directory, make_stage_spec
from gridq.graph.types import NUMBER, TEXT

FILE: dict[str, Any] = {
    "name": "shout",
    "description": "In capitals.",
    "input": {"kind": "Text"},
    "output": {"kind": "Text"},
    "effects": ["Pure"],
    "implementation": "builtin:shout",
}


def spec(**changes: Any) -> StageSpec:
    return StageSpec.from_json({**FILE, **changes})


def pad_digest(digits: str) -> str:
    return digits + "0" * (64 - len(digits))


# -- ids ----------------------------------------------------------------------------------------------------


def test_the_id_is_the_hash_of_its_canonical_parts() -> None:
    signature = {
        "effects": [{"effect": "Pure"}],
        "input": {"kind": "Text"},
        "name": "shout",
        "output": {"kind": "Text"},
    }
    text = json.dumps(signature, separators=(",", ":"), sort_keys=True)
    assert spec().signature_id == hashlib.sha256(text.encode()).hexdigest()
    signature["implementation_hash"] = hashlib.sha256(b"builtin:shout").hexdigest()
    text = json.dumps(signature, separators=(",", ":"), sort_keys=True)
    assert spec().id == hashlib.sha256(text.encode()).hexdigest()


def test_an_id_covers_signature_and_implementation() -> None:
    base = spec()
    for change in (
        {"name": "cry"},
        {"output": {"kind": "Any"}},
        {"effects": ["Network"]},
        {"input": {"kind": "Any"}},
    ):
        assert spec(**change).id != base.id
        assert spec(**change).signature_id != base.signature_id
    other = spec(implementation="builtin:cry")
    assert other.id != base.id
    assert other.signature_id == base.signature_id
    same = spec(description="x", tags=["t"], lifecycle="Draft", timeout=3, config={"a": 1}, aliases=["y"])
    assert (same.id, same.signature_id) == (base.id, base.signature_id)
    assert spec(effects=[{"effect": "Pure"}]).id == base.id
    assert spec(effects=["Network", "Pure"]).id == spec(effects=["Pure", "Network"]).id


def test_a_python_stages_id_covers_its_source() -> None:
    data = {**FILE, "implementation": "python:pkg.mod:Class.method"}
    one, two = (StageSpec.from_json(data, "", source) for source in ("return 1", "return 2"))
    assert one.id != two.id
    assert one.signature_id == two.signature_id
    assert hash_implementation("python:a:b", "x") != hash_implementation("python:a:c", "x")


def test_a_given_id_is_kept() -> None:
    assert spec(id="6fcd608e").id == "6fcd608e"


def test_a_spec_round_trips() -> None:
    one = spec(
        config={"a": [1]},
        timeout=1.5,
        tags=["t"],
        aliases=["x"],
        examples=[{"input": "a"}],
        lifecycle="Draft",
    )
    assert StageSpec.from_json(one.to_json()) == one
    assert StageSpec.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_nodes_config_overrides_the_stages_config() -> None:
    assert spec().merge_config(None) is None
    assert spec().merge_config({}) == {}
    assert spec(config={"a": 1, "b": 2}).merge_config({"b": 3}) == {"a": 1, "b": 3}
    assert spec(config={"a": 1}).merge_config(None) == {"a": 1}


# -- reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["name", "input", "output", "implementation"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(MissingField) as caught:
        StageSpec.from_json({name: value for name, value in FILE.items() if name != key}, "[3]")
    assert caught.value.path == f"[3].{key}"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"input": "Text"}, "input"),
        ({"output": {"kind": "List", "value": {"kind": "x"}}}, "output.value.kind"),
        ({"effects": "Pure"}, "effects"),
        ({"effects": ["Pure", 1]}, "effects[1]"),
        ({"implementation": "shout"}, "implementation"),
        ({"implementation": "python:pkg.mod"}, "implementation"),
        ({"implementation": "python:os;rm:f"}, "implementation"),
        ({"config": []}, "config"),
        ({"lifecycle": "Alive"}, "lifecycle"),
        ({"lifecycle": {"a": 1, "b": 2}}, "lifecycle"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"tags": ["a", 1]}, "tags"),
        ({"aliases": "x"}, "aliases"),
        ({"examples": {}}, "examples"),
        ({"timout": 5}, "timout"),
    ],
)
def test_a_wrong_key_is_named(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidField) as caught:
        spec(**changes)
    assert caught.value.path == path


def test_unknown_keys_and_other_runtimes_lifecycle_are_read() -> None:
    one = spec(_comment="x", cost={"cents": 1}, lifecycle={"Deprecated": {"successor_id": "y"}})
    assert one.lifecycle == "Deprecated"


# -- resolution ---------------------------------------------------------------------------------------------

A = make_stage_spec(
    "shout", "builtin:a", id=pad_digest("0123456789a"), input=TEXT, output=TEXT, aliases=("loud",)
)
B = make_stage_spec("whisper", "builtin:b", id=pad_digest("0123456789b"), input=TEXT, output=TEXT)
OLD = make_stage_spec("sum", "builtin:old", id=pad_digest("aaaaaaaaa"), output=NUMBER, lifecycle="Deprecated")
NEW = make_stage_spec("sum", "builtin:new", id=pad_digest("bbbbbbbbb"), output=NUMBER)
DRAFT = make_stage_spec("draft", "builtin:draft", id=pad_digest("ccccccccc"), lifecycle="Draft")
GONE = make_stage_spec("gone", "builtin:gone", id=pad_digest("ddddddddd"), lifecycle="Tombstone")
TWO = [make_stage_spec("twin", f"builtin:twin{i}", output=output) for i, output in enumerate((TEXT, NUMBER))]
CATALOGUE = Catalogue([A, B, OLD, NEW, DRAFT, GONE, *TWO])


@pytest.mark.parametrize(
    ("ref", "pinning", "found"),
    [
        (A.id, "signature", A),
        (A.id, "both", A),
        ("0123456789a", "signature", A),
        ("0123456789b", "both", B),
        ("shout", "signature", A),
        ("loud", "signature", A),
        (A.signature_id, "signature", A),
        (A.signature_id[:10], "signature", A),
        ("sum", "signature", NEW),
        (OLD.id, "signature", NEW),
        (OLD.id[:8], "signature", NEW),
        (OLD.id, "both", OLD),
        (OLD.id[:8], "both", OLD),
        (NEW.signature_id, "signature", NEW),
        ("draft", "signature", DRAFT),
        (TWO[0].id, "signature", TWO[0]),
    ],
)
def test_references_resolve_to_their_stage(ref: str, pinning: str, found: StageSpec) -> None:
    assert CATALOGUE.resolve(ref, pinning, "root") is found
    assert CATALOGUE.resolve(ref, pinning, "root") is found


@pytest.mark.parametrize(
    ("ref", "pinning", "error"),
    [
        ("01234567", "signature", AmbiguousStage),
        ("twin", "signature", AmbiguousStage),
        ("0123456", "signature", UnknownStage),
        ("ffffffff", "signature", UnknownStage),
        ("shouts", "signature", UnknownStage),
        ("gone", "signature", UnknownStage),
        (GONE.id, "both", UnknownStage),
        ("shout", "both", UnknownStage),
        (A.signature_id, "both", UnknownStage),
        ("", "signature", UnknownStage),
    ],
)
def test_invalid_references_are_refused_with_their_path(
    ref: str, pinning: str, error: type[GraphError]
) -> None:
    with pytest.raises(error) as caught:
        CATALOGUE.resolve(ref, pinning, "root.stages[1]")
    assert type(caught.value) is error
    assert caught.value.path == "root.stages[1]"
    assert caught.value.details["stage"] == ref


def test_unknown_references_suggest_the_closest_stages() -> None:
    with pytest.raises(UnknownStage) as unknown:
        CATALOGUE.resolve("shuot")
    assert str(unknown.value.fix).startswith("use 'shout'")
    with pytest.raises(UnknownStage) as by_digits:
        CATALOGUE.resolve("0123ffff")
    assert by_digits.value.details["candidates"] == [f"shout ({A.id[:12]})", f"whisper ({B.id[:12]})"]
    with pytest.raises(AmbiguousStage) as ambiguous:
        CATALOGUE.resolve("01234567")
    assert {"shout", "whisper"} <= {text.split()[0] for text in ambiguous.value.details["candidates"]}
    with pytest.raises(UnknownStage) as pinned:
        CATALOGUE.resolve("shout", "both")
    assert A.id in str(pinned.value.fix)
    with pytest.raises(UnknownStage, match="catalogue is empty"):
        Catalogue().resolve("x")
    with pytest.raises(UnknownStage) as own:
        CATALOGUE.resolve("frequent_words")
    assert "GRIDQ_STAGES" in str(own.value.fix)


def test_extending_a_catalogue_leaves_the_original_unchanged() -> None:
    more = Catalogue([A]).extend([B, A])
    assert len(more) == 2
    assert more.resolve("whisper") is B
    with pytest.raises(UnknownStage):
        Catalogue([A]).resolve("whisper")


def test_two_stages_with_one_id_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"shout.*whisper"):
        Catalogue([A, make_stage_spec("whisper", "builtin:x", id=A.id)])


# -- directories --------------------------------------------------------------------------------------------


def write(directory: Path, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / name).write_text(text, "utf-8")


def test_a_directory_of_stage_files_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, "b.json", FILE)
    write(
        tmp_path, "a.json", [{**FILE, "name": "one"}, {**FILE, "name": "two", "implementation": "python:m:f"}]
    )
    write(tmp_path, "notes.txt", "ignored")
    specs = load_directory(tmp_path)
    assert [one.name for one in specs] == ["one", "two", "shout"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("{", "x.json: line 1, column 2"),
        ("3", "x.json"),
        ({**FILE, "timeout": -1}, "x.json: timeout"),
        ([FILE, {**FILE, "effects": [7]}], "x.json: [1].effects[0]"),
        ('{"name": 1, "name": 2}', "x.json: name"),
    ],
)
def test_an_error_names_file_and_key(tmp_path: Path, content: Any, where: str) -> None:
    write(tmp_path, "a.json", FILE)
    write(tmp_path, "x.json", content)
    with pytest.raises(ConfigError) as caught:
        load_directory(tmp_path)
    assert str(caught.value.path).endswith(where)
    assert "x.json" in caught.value.message


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_directory(tmp_path / "none")
    assert caught.value.path == str(tmp_path / "none")
