"""Each script carries the functions it uses, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from gridq.config.settings import Settings
from gridq.store import scripts
from gridq.store.library import (
    FILES,
    assemble,
    find_definitions,
    parse_arguments,
    read_lua,
    replace_constants,
)
from gridq.store.scripts import NAMES, NewJob, Pieces, build_constants, build_source, order_arguments
from tests.conftest import GridEnv

DEFINED = set(re.findall(r"^local function (\w+)", "".join(read_lua(f"lib/{file}") for file in FILES), re.M))


@pytest.mark.parametrize("name", NAMES)
def test_called_lua_functions_are_defined_before_use(name: str) -> None:
    known: set[str] = set()
    for line in build_source(name, build_constants(Settings())).splitlines():
        defined = re.match(r"local function (\w+)", line)
        if defined:
            known.add(defined[1])
        code = re.sub(r"--.*|'[^']*'", "", line)
        called = {call for call in re.findall(r"(?<![\w.:])(\w+)\(", code) if call in DEFINED}
        assert called <= known, line


@pytest.mark.parametrize("name", NAMES)
def test_a_script_has_room_for_more_local_variables(grid_env: GridEnv, name: str) -> None:
    """Lua takes 200 in one function, and a script is one: its constants, arguments and library functions."""
    room = f"local {', '.join(f'room{number}' for number in range(15))}\n"
    code = build_source(name, build_constants(Settings())).removeprefix("#!lua flags=allow-oom\n")
    try:
        grid_env.client.script_load(room + code)
    except ResponseError as exc:
        pytest.fail(f"{exc}: move library functions that few calls need between --[ and --] (library.py)")


def test_constants_become_their_values_in_code_alone() -> None:
    code = "local a = LEASE + x.LEASE -- LEASE of a seat's\nC('LEASE', K .. 'LEASE', LEASES, NOW)"
    assert replace_constants(code, {"LEASE": "(3)", "K": "'p.'"}) == (
        "local a = (3) + x.LEASE -- LEASE of a seat's\nC('LEASE', 'p.' .. 'LEASE', LEASES, NOW)"
    )


def test_unused_lua_functions_are_left_out() -> None:
    claim = "".join(find_definitions(read_lua("claim")))
    assert "local function claim_stage(" in claim
    for name in ("end_job", "reserve", "park_agent", "publish_end", "restart_scope"):
        assert f"local function {name}(" not in claim
    assert find_definitions("return 1") == []


def test_rarely_used_lua_functions_are_defined_in_their_branch() -> None:
    before, _, part = assemble(read_lua("admit")).partition("\nif is_guarded and")
    for name in ("reserve", "check_room", "make_room", "end_job"):
        assert f"local function {name}(" not in before
        assert f"local function {name}(" in part
    assert part.count("local function make_ready(") == 0
    assert assemble("return 1") == "return 1"


def test_every_lua_function_is_used() -> None:
    together = "".join(one for name in NAMES for one in find_definitions(read_lua(name)))
    assert {name for name in DEFINED if f"local function {name}(" not in together} == set()


def test_names_in_strings_comments_and_fields_are_not_calls() -> None:
    assert find_definitions("-- end_job(job)\nlocal s = 'end_job(x)'; s.end_job(1)") == []


def find_script_arguments() -> dict[str, list[set[str]]]:
    """The names of the arguments of each `self.call("<script>", …)` in gridq/store/scripts.py."""
    found: dict[str, list[set[str]]] = {}
    for node in ast.walk(ast.parse(Path(str(scripts.__file__)).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "call":
            (script,) = node.args
            assert isinstance(script, ast.Constant)
            found.setdefault(str(script.value), []).append({str(word.arg) for word in node.keywords})
    return found


def test_scripts_are_called_with_their_declared_arguments() -> None:
    calls = find_script_arguments()
    assert {*calls, "admit", "complete", "emit"} == set(NAMES)
    for name, given in calls.items():
        declared = parse_arguments(read_lua(name))
        for names in given:
            assert names == {*declared.names, *([declared.rest] if declared.rest else [])}, name
    admit = parse_arguments(read_lua("admit"))
    assert {*admit.names, admit.rest} == {*NewJob.__slots__, "expected_use", "groups", "plan"}
    assert parse_arguments(read_lua("emit")).rest == "streams"
    fields = re.findall(r"^--   ([a-z]+)  ", read_lua("emit"), re.M)
    assert tuple("pieces" if field == "count" else field for field in fields) == Pieces._fields


def test_no_script_reads_arguments_by_number() -> None:
    assert [name for name in NAMES if re.search(r"ARGV\[\d|unpack\(ARGV\)", read_lua(name))] == []


def test_arguments_are_ordered_by_name() -> None:
    given = {"nonce": "n", "slot": "0", "seat": "m.a", "incarnation": "i"}
    assert order_arguments("claim", given) == ("m.a", "i", "0", "n")
    assert order_arguments("rank", {"queue": "q", "ttl_ms": 5, "ranks": ["m.a", 0]}) == ("q", 5, "m.a", 0)
    with pytest.raises(TypeError, match="needs the argument 'seat'"):
        order_arguments("claim", {"nonce": "n"})
    with pytest.raises(TypeError, match="has no argument more"):
        order_arguments("claim", given | {"more": 1})
