"""Looking for vendors' programs: on PATH or where the table says, which version, whether somebody is logged
in.

Nothing is asked of a model. Only what has a table is lent, and only of that a program is started.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.profiles.llm.programs.environment import build_environment
from workers.profiles.llm.programs.failures import redact
from workers.profiles.llm.programs.process import run_to_end
from workers.profiles.llm.programs.seat_table import ProgramSeat
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS

CHECK_SECONDS = 1.5
"""How long a program is asked for its version, and for its login: both at once, all seats at once."""

CLOSING_SECONDS = 0.4
"""What ending a program that did not answer may take beside."""

_VERSION = re.compile(r"\d+\.\d+[\w.+-]*")

CommandResult = tuple[int | None, str]


@dataclass(frozen=True)
class ProgramStatus:
    """What a seat's program said: its path, its version ("": not told in time), or why it cannot work."""

    program: str = ""
    version: str = ""
    why_not: str = ""


def find_program(seat: ProgramSeat, environ: Mapping[str, str] = os.environ) -> str:
    """The path of the seat's program, "" where there is none."""
    if seat.program is not None:
        return shutil.which(str(Path(seat.program).expanduser())) or ""
    return _on_path(VENDOR_PROGRAMS[seat.cli].programs, environ)


def check_programs(seats: Sequence[ProgramSeat], environ: Mapping[str, str] = os.environ) -> dict[str, ProgramStatus]:
    """What is found of each seat, by its name, within two seconds for all."""
    programs = {seat.name: find_program(seat, environ) for seat in seats}
    said: dict[tuple[str, str], CommandResult] = {}
    threads = []
    for seat in seats:
        if programs[seat.name]:
            login = VENDOR_PROGRAMS[seat.cli].login if not seat.env else None  # a key may stand in for it
            for what, argv in (("version", ("--version",)), ("login", login.argv if login else ())):
                if argv:
                    given = (said, (seat.name, what), seat, [programs[seat.name], *argv], environ)
                    threads.append(threading.Thread(target=_ask, args=given, daemon=True))
    for thread in threads:
        thread.start()
    until = time.monotonic() + CHECK_SECONDS + CLOSING_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    nothing: CommandResult = (None, "")
    return {
        seat.name: _looked(
            seat,
            programs[seat.name],
            said.get((seat.name, "version"), nothing),
            said.get((seat.name, "login"), nothing),
        )
        for seat in seats
    }


def list_not_lent(lent: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """For each program on PATH that no table lends: a sentence with the vendor's rule, and the lines to add,
    each on a line of its own.
    """
    sentences = []
    for provider in VENDOR_PROGRAMS.values():
        program = _on_path(provider.programs, environ)
        if program and provider.name not in lent:
            name = f'"{provider.name}"'
            redact = f"{provider.title} ({program}) is found, not lent. {provider.rule}"
            redact += " To lend it, add to seats.toml:"
            lines = ("[[llm]]", f"name = {name}", f"cli = {name}", f"models = [{provider.example}]")
            sentences.append("\n".join((redact, *lines)))
    return sentences


def _on_path(names: Iterable[str], environ: Mapping[str, str]) -> str:
    return next(filter(None, (shutil.which(name, path=environ.get("PATH", "")) for name in names)), "")


def _ask(
    said: dict[tuple[str, str], CommandResult],
    key: tuple[str, str],
    seat: ProgramSeat,
    argv: list[str],
    environ: Mapping[str, str],
) -> None:
    seen = build_environment(VENDOR_PROGRAMS[seat.cli], seat.folder(), seat.env, environ)
    with tempfile.TemporaryDirectory(prefix="gridq-cli-", ignore_cleanup_errors=True) as folder:
        try:
            said[key] = run_to_end(argv, seen, Path(folder), CHECK_SECONDS)
        except OSError as exc:
            said[key] = (127, f"{type(exc).__name__}: {exc.strerror}")


def _looked(seat: ProgramSeat, program: str, version: CommandResult, login: CommandResult) -> ProgramStatus:
    provider = VENDOR_PROGRAMS[seat.cli]
    if not program:
        where = seat.program or f"{' or '.join(provider.programs)} on PATH"
        return ProgramStatus(why_not=f"{provider.title} is not installed: there is no {where}")
    code, words = version
    if code:
        why = f"{provider.title} ({program}) does not start: {redact(words) or f'exit code {code}'}"
        return ProgramStatus(program, why_not=why)
    if provider.login is not None and provider.login.out.search(login[1]):
        return ProgramStatus(program, why_not=f"{provider.title} is logged out: {provider.log_in}")
    found = _VERSION.search(words)
    return ProgramStatus(program, found[0] if found else "")
