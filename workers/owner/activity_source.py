"""What a source of activity returns: the machine's idle time and its processes. Linux and macOS report them
differently (`activity_linux`, `activity_macos`); `activity` selects the source.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

INTERPRETERS = frozenset({"node", "bun", "deno", "python", "python3", "sh", "bash"})
"""Programs that run other programs: the next words of the command line name the program that runs."""

MAX_PROGRAM_WORDS = 4
"""Words of a command line that are searched for the program's name."""

PROGRAM_TIMEOUT_SECONDS = 1.0
"""Seconds after which `run_program` gives up."""


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Seconds since the last use of keyboard or mouse; None where the system does not report it: see
    `reason`.
    """

    seconds: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A running process. `mine`: it belongs to this user. `words`: its command line, at least its name."""

    pid: int
    parent: int
    mine: bool
    words: tuple[str, ...]

    def is_program(self, name: str) -> bool:
        """Return whether it runs the program `name`, directly or through an interpreter."""
        first, *rest = (PurePath(word).name for word in self.words[:MAX_PROGRAM_WORDS] or ("",))
        if _strip_suffix(first) == name:
            return True
        return _strip_suffix(first) in INTERPRETERS and name in map(_strip_suffix, rest)


class ActivitySource(Protocol):
    """A system's report of how its machine is used."""

    def read_idle_time(self) -> IdleTime:
        """Return the time since the last use of keyboard or mouse. It may take two seconds."""

    def list_processes(self) -> list[Process] | None:
        """Return the running processes; None where the system does not list them."""


RunProgram = Callable[[Sequence[str]], str | None]
"""The type of `run_program`, which tests replace."""


def run_program(command: Sequence[str]) -> str | None:
    """Return what a program prints, untranslated; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 fixed programs and arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROGRAM_TIMEOUT_SECONDS,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _strip_suffix(name: str) -> str:
    return name.removesuffix(".js")
