"""Whether somebody uses the machine: its keyboard and mouse, or a program of the owner's.

`Machine` is the one interface; each system tells in its own way, by what it documents. Where one cannot tell,
it says why, and a seat that is lent only when nobody uses the machine is not lent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

INTERPRETERS = frozenset({"node", "bun", "deno", "python", "python3", "sh", "bash"})
"""Programs that run others: of them the next words name what runs."""

WORDS = 4
"""Words of a command line among which its program is looked for."""


@dataclass(frozen=True, slots=True)
class Told:
    """For how many seconds nobody has used keyboard or mouse; None: it cannot be told, and `why`."""

    seconds: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A running process; `words`: its command line, at least its name."""

    pid: int
    parent: int
    mine: bool
    words: tuple[str, ...]

    def is_program(self, name: str) -> bool:
        """Whether it runs the program `name`, by itself or by an interpreter."""
        first, *rest = (PurePath(word.replace("\\", "/")).name for word in self.words[:WORDS] or ("",))
        return _bare(first) == name or (_bare(first) in INTERPRETERS and name in map(_bare, rest))


class Machine(Protocol):
    """What a system tells of its use."""

    def idle(self) -> Told:
        """For how long nobody has used keyboard or mouse. It may take two seconds."""

    def processes(self) -> list[Process] | None:
        """What runs; None where that cannot be told."""


def here() -> Machine:
    """This machine."""
    if sys.platform == "darwin":
        from workers.owner.idle_macos import MacOS

        return MacOS()
    if sys.platform == "win32":
        from workers.owner.idle_windows import Windows

        return Windows()
    from workers.owner.idle_linux import Linux

    return Linux()


def own_use(program: str, running: Iterable[Process], ours: Collection[int]) -> int | None:
    """The id of a process of this user that runs `program` and that no process among `ours` has started; None
    where there is none.
    """
    found = {each.pid: each for each in running}
    for each in found.values():
        if each.mine and each.is_program(program) and not _descends(each, found, ours):
            return each.pid
    return None


def _descends(process: Process, found: dict[int, Process], ours: Collection[int]) -> bool:
    seen: set[int] = set()
    pid = process.pid
    while pid not in seen:
        if pid in ours or pid == os.getpid():
            return True
        seen.add(pid)
        if pid not in found:
            return False
        pid = found[pid].parent
    return False


def _bare(name: str) -> str:
    return name.removesuffix(".exe").removesuffix(".EXE").removesuffix(".js")
