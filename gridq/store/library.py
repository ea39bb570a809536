"""Assemble the Lua scripts: each with its arguments as locals and with the library functions that it calls.

Redis compiles every function of a script anew at each call. So a script carries the functions that it uses,
directly or through one another, and no others: a claim must not pay for what only a sweep calls.

A script's header declares its arguments, one a line, in the order in which they are sent:

    -- ARGS
    --   seat         name of the seat
    --   leases...    its open leases

They become `local seat, leases_at = ARGV[1], 2`. A name with `...` takes all the remaining arguments; the
local says where in ARGV they begin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILES = (
    "base", "damage", "preconditions", "windows", "ledger", "access", "meters", "rates", "quotas",
    "idempotency", "events", "reliability", "fallbacks", "waiting_stages", "jobs", "steps", "quarantine",
    "failed_attempts", "queue_bounds", "unavailable_seats", "seat_lifecycle", "fair_order", "claiming",
    "parked_agents", "delay_reasons",
)  # fmt: skip
"""The files of lua/lib/. Each uses only those before it."""

_ARGUMENTS = re.compile(r"^-- ARGS\n((?:--   .*\n)*)", re.M)
_ARGUMENT = re.compile(r"^--   ([a-z_]+)(\.\.\.)? ", re.M)
_PART = re.compile(r"^ *--\[\n(.*?)^ *--\]\n", re.M | re.S)
_DEFINITION = re.compile(r"local (function )?(\w+(?:, ?\w+)*)")
_NOT_CODE = re.compile(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_NOT_CODE_OR_CONSTANT = re.compile(_NOT_CODE.pattern + r"|(?<![\w.:])([A-Z][A-Z_]*)(?!\w)")
_NAME = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)\s*(\(?)")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that a script declares: their names in order, and the one that takes all the rest."""

    names: tuple[str, ...]
    rest: str | None = None

    def to_lua(self) -> str:
        """Return the Lua statement that makes locals of them; empty for a script without arguments."""
        local = [*self.names, *([f"{self.rest}_at"] if self.rest else [])]
        values = [f"ARGV[{index}]" for index in range(1, len(self.names) + 1)]
        if self.rest:
            values.append(str(len(self.names) + 1))
        return f"local {', '.join(local)} = {', '.join(values)}\n" if local else ""


@cache
def read_lua(name: str) -> str:
    return resources.files("gridq.store").joinpath("lua", f"{name}.lua").read_text("utf-8")


def parse_arguments(script: str) -> Arguments:
    declared = _ARGUMENTS.search(script)
    found = _ARGUMENT.findall(declared[1]) if declared else []
    rest = [name for name, dots in found if dots]
    if rest[1:] or (rest and rest[0] != found[-1][0]):
        raise ValueError(f"only the last argument of a script may take the rest: {rest}")
    return Arguments(tuple(name for name, dots in found if not dots), rest[0] if rest else None)


@cache
def assemble(script: str) -> str:
    """Return `script` after its arguments and the definitions that it uses.

    Definitions that are used only between the lines `--[` and `--]` stand at the beginning of that part:
    few calls come there, and the others do not pay for them.
    """
    before = find_definitions(_PART.sub("", script))

    def within(part: re.Match[str]) -> str:
        return "".join(one for one in find_definitions(part[1]) if one not in before) + part[1]

    return "".join(before) + parse_arguments(script).to_lua() + _PART.sub(within, script)


def replace_constants(script: str, constants: Mapping[str, str]) -> str:
    """Return `script` with the values of `constants` in place of their names.

    As locals they would count among the 200 that Lua allows in a function, and a script is one.
    """
    return "".join(constants.get(part, part) for part in _split_at_constants(script))


@cache
def _split_at_constants(script: str) -> list[str]:
    """Return `script` in parts, of which each name that may be a constant is one."""
    parts: list[str] = []
    rest = 0
    for found in _NOT_CODE_OR_CONSTANT.finditer(script):
        if found[1]:
            parts += [script[rest : found.start()], found[1]]
            rest = found.end()
    return [*parts, script[rest:]]


def find_definitions(script: str) -> list[str]:
    """Return the library definitions that `script` uses, each after those that it uses itself."""
    used = set(_find_names(script))
    kept: list[str] = []
    for names, definition in reversed(_read_definitions()):
        if names & used:
            kept.append(definition)
            used |= _find_names(definition)
    return kept[::-1]


@cache
def _read_definitions() -> list[tuple[frozenset[str], str]]:
    """Return (the names that use it, its text) of each top-level definition of the library."""
    found = []
    for file in FILES:
        _, *definitions = re.split(r"^(?=local )", read_lua(f"lib/{file}"), flags=re.M)
        for definition in definitions:
            match = _DEFINITION.match(definition)
            assert match is not None, definition
            names = match[2].replace(" ", "").split(",")
            # A function counts as used only if it is called: fields and variables have such names too.
            found.append((frozenset(f"{name}(" if match[1] else name for name in names), definition))
    return found


@cache
def _find_names(code: str) -> frozenset[str]:
    """Return the names in `code`; a name that is called appears as `name(` too."""
    found = _NAME.findall(_NOT_CODE.sub("", code))
    return frozenset(name for name, _ in found) | {f"{name}(" for name, called in found if called}
