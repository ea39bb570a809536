"""`load_profiles` finds a profile by its installed name or by its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridq.errors import ConfigError, InvalidField
from gridq.profiles.profile import (
    MAX_DROPPED_FIELDS,
    MAX_PLACE_CHARACTERS,
    Profile,
    StageContext,
    check_effect_fields,
    find_demand,
    load_profiles,
)
from gridq.protocol.models import Effect

BENCH = "tests.fakes.bench_profile:BenchProfile"


class Unfinished(Profile):
    """A profile without its abstract methods."""

    kind = "unfinished"


def test_an_installed_profile_is_loaded_by_name():
    assert list(load_profiles(("llm",))) == ["llm"]


def test_a_profile_is_loaded_by_its_class():
    assert list(load_profiles((BENCH, "llm"))) == ["bench", "llm"]


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError) as caught:
        load_profiles(("lm",))
    assert caught.value.path == "GRIDQ_PROFILES"
    assert "llm" in str(caught.value.fix)


@pytest.mark.parametrize(
    "name",
    [
        "no_such_module_here:Profile",
        "tests.fakes.bench_profile:Missing",
        "tests.fakes.bench_profile:",
        ":",
        ":A",
    ],
)
def test_a_class_that_cannot_be_imported_is_refused(name: str):
    with pytest.raises(ConfigError) as caught:
        load_profiles((name,))
    assert caught.value.path == "GRIDQ_PROFILES"
    assert caught.value.details["reason"]


def test_a_module_that_fails_on_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "profile_that_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_profiles(("profile_that_exits:Mine",))
    assert caught.value.details["reason"] == "SystemExit: 3"


@pytest.mark.parametrize("name", ["json:JSONDecoder", "json:dumps", f"{__name__}:Unfinished"])
def test_a_class_that_is_not_a_profile_is_refused(name: str):
    with pytest.raises(ConfigError) as caught:
        load_profiles((name,))
    assert caught.value.path == "GRIDQ_PROFILES"


def test_two_profiles_of_one_kind_are_refused():
    with pytest.raises(ConfigError) as caught:
        load_profiles(("llm", "workers.profiles.llm:LlmProfile"))
    assert caught.value.path == "GRIDQ_PROFILES"


@pytest.mark.parametrize("fields", [{"slug": 3}, {"slug": ""}])
def test_a_wrong_effect_names_the_place_of_its_stage(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidField) as caught:
        find_demand([Effect(effect="Bench", **fields)], load_profiles((BENCH,)), "root.stages[1]")
    assert str(caught.value.path).startswith("root.stages[1].")


def test_a_field_that_an_effect_does_not_have_is_refused() -> None:
    check_effect_fields(Effect(effect="X", color="red"), ("color",))
    with pytest.raises(InvalidField) as caught:
        check_effect_fields(Effect(effect="X", colour="red"), ("size", "color"))
    details = caught.value.details
    assert details == {"path": "effects.colour", "expected": "size, color", "fix": "use 'color'"}


def test_what_has_no_effect_is_kept_once_and_within_bounds() -> None:
    context = StageContext()
    for place in ("seed", "user", "seed", "x" * 10_000):
        context.drop_field(place)
    assert context.dropped_fields == ["seed", "user", "x" * MAX_PLACE_CHARACTERS]
    for number in range(1000):
        context.drop_field(str(number))
    assert len(context.dropped_fields) == MAX_DROPPED_FIELDS
