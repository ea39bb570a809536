"""The Lua library: functions that several scripts need.

The server builds every function of a script anew at each call, so a script gets those that it uses, by
itself or by one another, and no more: what a claim never calls must not cost it anything.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

FILES = (
    "base", "gate", "windows", "ledger", "access", "meters", "rates", "money", "idempotency", "events",
    "reliability", "chain", "pending", "jobs", "room", "seats", "take", "parking", "lateness",
)  # fmt: skip
"""The files of lua/lib/, each of which uses only those before it."""

_PART = re.compile(r"^ *--\[\n(.*?)^ *--\]\n", re.M | re.S)
_DEFINITION = re.compile(r"local (function )?(\w+(?:, ?\w+)*)")
_NOT_CODE = re.compile(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_NAME = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)\s*(\(?)")


def text(name: str) -> str:
    """The text of a file in lua/."""
    return resources.files("gridq.store").joinpath("lua", f"{name}.lua").read_text("utf-8")


def whole(script: str) -> str:
    """`script` with the definitions that it uses, before it. Those that only a part between the lines `--[`
    and `--]` uses, to which few calls come, stand at that part's beginning: the others do not pay for them.
    """
    before = _needed(_PART.sub("", script))

    def within(part: re.Match[str]) -> str:
        return "".join(one for one in _needed(part[1]) if one not in before) + part[1]

    return "".join(before) + _PART.sub(within, script)


def needed(script: str) -> str:
    """The definitions that `script` uses, in an order in which each comes after those it uses."""
    return "".join(_needed(script))


def _needed(script: str) -> list[str]:
    used = _used(script)
    kept: list[str] = []
    for names, definition in reversed(_definitions()):
        if names & used:
            kept.append(definition)
            used |= _used(definition)
    return kept[::-1]


@cache
def _definitions() -> list[tuple[frozenset[str], str]]:
    """(what it is called by, its text) of each definition at the outermost level."""
    found = []
    for file in FILES:
        _, *definitions = re.split(r"^(?=local )", text(f"lib/{file}"), flags=re.M)
        for definition in definitions:
            match = _DEFINITION.match(definition)
            assert match is not None, definition
            names = match[2].replace(" ", "").split(",")
            # A function by its calls alone: fields and variables bear such names too.
            found.append((frozenset(f"{name}(" if match[1] else name for name in names), definition))
    return found


def _used(code: str) -> set[str]:
    """The names in `code`; of what is called `name(` too."""
    found = _NAME.findall(_NOT_CODE.sub("", code))
    return {name for name, _ in found} | {f"{name}(" for name, called in found if called}
