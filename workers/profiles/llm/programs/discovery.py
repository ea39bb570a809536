"""Find vendors' programs, on PATH or where the table says, and check their version and login.

The check asks no model. gridq lends and starts only programs that have a table.
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

from workers.profiles.llm.programs.failures import redact
from workers.profiles.llm.programs.process import run_to_end
from workers.profiles.llm.programs.seat_table import ProgramSeat, build_environment
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS

CHECK_SECONDS = 1.5
"""Time limit for the version and login checks. They run at the same time, for all seats."""

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
    """Check the program of each seat. Return the results by seat name, within two seconds for all seats."""
    paths = {seat.name: find_program(seat, environ) for seat in seats}
    results: dict[tuple[str, str], CommandResult] = {}
    threads = []
    for seat in seats:
        if paths[seat.name]:
            # with `env`, a key may replace the login
            login_check = VENDOR_PROGRAMS[seat.cli].login_check if not seat.env else None
            for check, argv in (
                ("version", ("--version",)),
                ("login", login_check.argv if login_check else ()),
            ):
                if argv:
                    arguments = (results, (seat.name, check), seat, [paths[seat.name], *argv], environ)
                    threads.append(threading.Thread(target=_run_check, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CHECK_SECONDS + STOP_SECONDS
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
            lines = ("[[llm]]", f"name = {name}", f"cli = {name}", f"models = [{program.example}]")
            notes.append("\n".join((note, *lines)))
    return notes


def _find_on_path(names: Iterable[str], environ: Mapping[str, str]) -> str:
    return next(filter(None, (shutil.which(name, path=environ.get("PATH", "")) for name in names)), "")


def _run_check(
    results: dict[tuple[str, str], CommandResult],
    key: tuple[str, str],
    seat: ProgramSeat,
    argv: list[str],
    environ: Mapping[str, str],
) -> None:
    environment = build_environment(seat, environ)
    with tempfile.TemporaryDirectory(prefix="gridq-cli-", ignore_cleanup_errors=True) as folder:
        try:
            results[key] = run_to_end(argv, environment, Path(folder), CHECK_SECONDS)
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
    return ProgramStatus(path, found[0] if found else "")
