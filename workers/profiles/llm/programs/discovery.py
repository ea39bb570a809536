"""Find vendors' programs, on PATH or where the table says, and check their version and login.

The check asks no model. gridq lends and starts only programs that have a table.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.profiles.llm.programs.failures import redact
from workers.profiles.llm.programs.process import run_to_end
from workers.profiles.llm.programs.seat_table import ProgramSeat, build_environment
from workers.profiles.llm.programs.vendor import VendorProgram
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS

LOGIN_SECONDS = 1.5
VERSION_SECONDS = 4.0
"""Time limits for the checks, which run at the same time, for all seats. Without its version a program is not
lent, so it has as much time as a probe can take.
"""

STOP_SECONDS = 0.4
"""Additional time to stop a program that did not answer."""

_VERSION = re.compile(r"\d+\.\d+[\w.+-]*")

CommandResult = tuple[int | None, str]
"""The exit code (None if the command did not end in time) and the output."""


@dataclass(frozen=True)
class ProgramStatus:
    """The result of a check: the path and the version of a program, "" if not known, or the problem."""

    path: str = ""
    version: str = ""
    problem: str = ""


def find_program(seat: ProgramSeat, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the seat's program, "" if it does not exist."""
    if seat.program is not None:
        return shutil.which(str(Path(seat.program).expanduser())) or ""
    return _find_on_path(VENDOR_PROGRAMS[seat.cli].names, environ)


def check_programs(
    seats: Sequence[ProgramSeat], environ: Mapping[str, str] = os.environ
) -> dict[str, ProgramStatus]:
    """Check the program of each seat. Return the results by seat name."""
    paths = {seat.name: find_program(seat, environ) for seat in seats}
    results: dict[tuple[str, str], CommandResult] = {}
    threads = []
    for seat in seats:
        if paths[seat.name]:
            # with `env`, a key may replace the login
            login_check = VENDOR_PROGRAMS[seat.cli].login_check if not seat.env else None
            for check, argv, seconds in (
                ("version", ("--version",), VERSION_SECONDS),
                ("login", login_check.argv if login_check else (), LOGIN_SECONDS),
            ):
                if argv:
                    command = [paths[seat.name], *argv]
                    environment = build_environment(seat, environ)
                    arguments = (results, (seat.name, check), command, environment, seconds)
                    threads.append(threading.Thread(target=_run_check, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + VERSION_SECONDS + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    unknown: CommandResult = (None, "")
    return {
        seat.name: _judge_results(
            seat,
            paths[seat.name],
            results.get((seat.name, "version"), unknown),
            results.get((seat.name, "login"), unknown),
        )
        for seat in seats
    }


def list_not_lent(lent: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a note for each program on PATH that is not among `lent`, the programs with a table.

    A note has the vendor's rule on lending, and the lines to add to the seats file.
    """
    notes = []
    for program in VENDOR_PROGRAMS.values():
        path = _find_on_path(program.names, environ)
        if path and program.name not in lent:
            name = f'"{program.name}"'
            note = f"{program.title} ({path}) is installed but not lent. {program.rule}"
            note += " To lend it, add to seats.toml:"
            lines = ["[[llm]]", f"name = {name}", f"cli = {name}", f"models = [{program.example}]"]
            if not program.proven:
                lines.append("tools = true  # whoever uses the seat can read files of this machine")
            notes.append("\n".join((note, *lines)))
    return notes


def _find_on_path(names: Iterable[str], environ: Mapping[str, str]) -> str:
    return next(filter(None, (shutil.which(name, path=environ.get("PATH", "")) for name in names)), "")


def _run_check(
    results: dict[tuple[str, str], CommandResult],
    key: tuple[str, str],
    argv: list[str],
    environment: Mapping[str, str],
    seconds: float,
) -> None:
    with tempfile.TemporaryDirectory(prefix="gridq-cli-", ignore_cleanup_errors=True) as folder:
        try:
            results[key] = run_to_end(argv, environment, Path(folder), seconds)
        except OSError as exc:
            results[key] = (127, f"{type(exc).__name__}: {exc.strerror}")


def _judge_results(
    seat: ProgramSeat, path: str, version: CommandResult, login: CommandResult
) -> ProgramStatus:
    program = VENDOR_PROGRAMS[seat.cli]
    if not path:
        where = seat.program or f"{' or '.join(program.names)} on PATH"
        return ProgramStatus(problem=f"{program.title} is not installed: there is no {where}")
    code, output = version
    if code:
        reason = redact(output) or f"exit code {code}"
        return ProgramStatus(path, problem=f"{program.title} ({path}) does not start: {reason}")
    if program.login_check is not None and program.login_check.logged_out.search(login[1]):
        return ProgramStatus(path, problem=f"{program.title} is logged out; to log in, run: {program.log_in}")
    found = _VERSION.search(output)
    known = found[0] if found else _read_package_version(path)
    return ProgramStatus(path, known, "" if seat.tools else _judge_version(program, known))


def _read_package_version(path: str) -> str:
    """Return the version of the npm package that `path` is in, "" if it is in none.

    On a busy machine, a program that runs on Node takes seconds to print its version.
    """
    for folder in Path(path).resolve().parents[:3]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((folder / "package.json").read_text("utf-8"))["version"])
    return ""


def _judge_version(program: VendorProgram, version: str) -> str:
    """Return why a program must not run without tools in this version, "" if it may."""
    name = f"{program.title} {version or '(version not known)'}"
    risk = f"{name} may read files of this machine that a prompt names"
    accept = "set tools = true to let whoever uses the seat read them"
    if not program.proven:
        return f"{risk}, and it cannot be kept from it; {accept}"
    if _parse_version(version) < _parse_version(program.proven):
        return f"{risk}; update it to {program.proven} or later, or {accept}"
    return ""


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
