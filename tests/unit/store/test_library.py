"""Each script carries the functions it uses, and no others."""

from __future__ import annotations

import re

import pytest

from gridq.config.settings import Settings
from gridq.store.library import FILES, needed, text, whole
from gridq.store.scripts import NAMES, constants, source

DEFINED = set(re.findall(r"^local function (\w+)", "".join(text(f"lib/{file}") for file in FILES), re.M))


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_called_is_defined_before(name: str) -> None:
    known: set[str] = set()
    for line in source(name, constants(Settings())).splitlines():
        defined = re.match(r"local function (\w+)", line)
        if defined:
            known.add(defined[1])
        code = re.sub(r"--.*|'[^']*'", "", line)
        called = {call for call in re.findall(r"(?<![\w.:])(\w+)\(", code) if call in DEFINED}
        assert called <= known, line


def test_what_is_not_used_is_left_out() -> None:
    claim = needed(text("claim"))
    assert "local function take(" in claim
    for name in ("finish", "promise", "park", "tell_end", "reset"):
        assert f"local function {name}(" not in claim
    assert needed("return 1") == ""


def test_what_few_calls_come_to_is_defined_there_alone() -> None:
    before, _, part = whole(text("admit")).partition("\nif guarded and")
    for name in ("promise", "refused_for_room", "make_room", "finish"):
        assert f"local function {name}(" not in before
        assert f"local function {name}(" in part
    assert part.count("local function push(") == 0
    assert whole("return 1") == "return 1"


def test_every_definition_is_used_by_a_script() -> None:
    together = "".join(needed(text(name)) for name in NAMES)
    assert {name for name in DEFINED if f"local function {name}(" not in together} == set()


def test_a_name_in_a_text_or_a_comment_or_a_field_is_no_use_of_it() -> None:
    assert needed("-- finish(job)\nlocal s = 'finish(x)'; s.finish(1)") == ""
