"""Each script carries the functions it uses, and no others."""

from __future__ import annotations

import re

import pytest

from gridq.config.settings import Settings
from gridq.store.library import FILES, assemble, find_definitions, read_lua
from gridq.store.scripts import NAMES, build_constants, build_source

DEFINED = set(re.findall(r"^local function (\w+)", "".join(read_lua(f"lib/{file}") for file in FILES), re.M))


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_called_is_defined_before(name: str) -> None:
    known: set[str] = set()
    for line in build_source(name, build_constants(Settings())).splitlines():
        defined = re.match(r"local function (\w+)", line)
        if defined:
            known.add(defined[1])
        code = re.sub(r"--.*|'[^']*'", "", line)
        called = {call for call in re.findall(r"(?<![\w.:])(\w+)\(", code) if call in DEFINED}
        assert called <= known, line


def test_what_is_not_used_is_left_out() -> None:
    claim = find_definitions(read_lua("claim"))
    assert "local function claim_stage(" in claim
    for name in ("end_job", "reserve", "park_agent", "publish_end", "restart_scope"):
        assert f"local function {name}(" not in claim
    assert find_definitions("return 1") == ""


def test_what_few_calls_come_to_is_defined_there_alone() -> None:
    before, _, part = assemble(read_lua("admit")).partition("\nif is_guarded and")
    for name in ("reserve", "check_room", "make_room", "end_job"):
        assert f"local function {name}(" not in before
        assert f"local function {name}(" in part
    assert part.count("local function make_ready(") == 0
    assert assemble("return 1") == "return 1"


def test_every_definition_is_used_by_a_script() -> None:
    together = "".join(find_definitions(read_lua(name)) for name in NAMES)
    assert {name for name in DEFINED if f"local function {name}(" not in together} == set()


def test_a_name_in_a_text_or_a_comment_or_a_field_is_no_use_of_it() -> None:
    assert find_definitions("-- end_job(job)\nlocal s = 'end_job(x)'; s.end_job(1)") == ""
