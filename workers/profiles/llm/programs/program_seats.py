"""Read and offer the seats that `[[llm]]` tables with `cli` declare."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridq.errors import ConfigError
from gridq.protocol.models import Json, SeatOffer
from gridq.protocol.queue_names import LLM
from workers.profiles.llm.capability import LlmCapability, RemoteModel
from workers.profiles.llm.programs.confinement import find_method
from workers.profiles.llm.programs.discovery import ProgramStatus, check_programs
from workers.profiles.llm.programs.seat_table import ProgramSeat, identify_login, parse_seat
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS


def is_program_table(table: Json) -> bool:
    """Return whether a table declares the login of a vendor's program."""
    return isinstance(table, dict) and "cli" in table


def parse_seats(tables: Sequence[Json], environ: Mapping[str, str] = os.environ) -> list[ProgramSeat]:
    """Return the seats of the tables with `cli`. Raises ConfigError if one is wrong or two use one login."""
    seats: list[ProgramSeat] = []
    logins: dict[str, str] = {}
    for index, table in enumerate(tables):
        if not is_program_table(table):
            continue
        seat = parse_seat(table, f"llm[{index}]")
        login = identify_login(seat, environ)
        if login in logins:
            raise ConfigError(
                f"The llm seats {logins[login]!r} and {seat.name!r} use one login: {login}",
                {
                    "path": f"llm[{index}]",
                    "expected": "one seat for each login: two programs on one login log its owner out",
                    "fix": "remove one, or give it a login of its own with home = …",
                },
            )
        logins[login] = seat.name
        seats.append(seat)
    return seats


def offer_seats(
    seats: Sequence[ProgramSeat], missing: list[str], environ: Mapping[str, str] = os.environ
) -> list[SeatOffer]:
    """Return the seats that can work. Adds to `missing` why the others cannot."""
    offers = []
    statuses = check_programs(seats, environ)
    for seat in seats:
        status = statuses[seat.name]
        if status.problem:
            missing.append(f"Seat {seat.name!r}: {status.problem}")
        else:
            offers.append(_make_offer(seat, status, environ))
    return offers


def _make_offer(seat: ProgramSeat, status: ProgramStatus, environ: Mapping[str, str]) -> SeatOffer:
    program = VENDOR_PROGRAMS[seat.cli]
    models = tuple(RemoteModel.model_validate(model.model_dump()) for model in seat.models)
    capability = LlmCapability(host=program.name, models=models, billing=seat.billing, states_cost=True)
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    note = f"{program.title} {status.version or '(version not known)'}, {count}"
    if seat.billing == "subscription":
        note += ", on a subscription"
    if seat.tools:
        note += ", with its tools"
        if not find_method():
            note += ", which can read the grid's own files: this system has no means against it"
    return SeatOffer(
        name=seat.name,
        kind=LLM,
        capability=capability.model_dump(mode="json", exclude_none=True),
        concurrency=seat.concurrency,
        exclusive=identify_login(seat, environ),
        limits=seat.limits(),
        requests_per_minute=seat.requests_per_minute,
        config={**seat.model_dump(mode="json"), "program": status.path},
        program=Path(status.path).name,
        note=note,
    )
