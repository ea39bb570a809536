"""The seats that `[[llm]]` tables with `cli` declare."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridq.errors import ConfigError
from gridq.protocol.models import Json, SeatOffer
from workers.profiles.llm.capability import LlmCapability, RemoteModel
from workers.profiles.llm.programs.discovery import Looked, look
from workers.profiles.llm.programs.table import CliSeat, exclusive, parse
from workers.profiles.llm.programs.vendors.all_vendors import PROVIDERS

KIND = "llm"


def is_cli(table: Json) -> bool:
    """Whether a table is one of these."""
    return isinstance(table, dict) and "cli" in table


def read(tables: Sequence[Json], environ: Mapping[str, str] = os.environ) -> list[CliSeat]:
    """The seats of those of `tables` that are such. ConfigError: one is wrong, or two use one login."""
    seats: list[CliSeat] = []
    logins: dict[str, str] = {}
    for index, table in enumerate(tables):
        if not is_cli(table):
            continue
        seat = parse(table, f"llm[{index}]")
        login = exclusive(seat, environ)
        if login in logins:
            raise ConfigError(
                f"The llm seats {logins[login]!r} and {seat.name!r} use one login: {login}",
                {
                    "path": f"llm[{index}]",
                    "expected": "one seat for each login: two programs on it log its owner out",
                    "fix": "remove one, or give it a login of its own by home = …",
                },
            )
        logins[login] = seat.name
        seats.append(seat)
    return seats


def offers(
    seats: Sequence[CliSeat], missing: list[str], environ: Mapping[str, str] = os.environ
) -> list[SeatOffer]:
    """The seats that could work; why another could not goes to `missing`."""
    found = []
    looked = look(seats, environ)
    for seat in seats:
        said = looked[seat.name]
        if said.why_not:
            missing.append(f"Seat {seat.name!r}: {said.why_not}")
        else:
            found.append(_offer(seat, said, environ))
    return found


def _offer(seat: CliSeat, said: Looked, environ: Mapping[str, str]) -> SeatOffer:
    provider = PROVIDERS[seat.cli]
    models = tuple(RemoteModel.model_validate(model.model_dump()) for model in seat.models)
    capability = LlmCapability(host=provider.name, models=models, billing=seat.billing, states_cost=True)
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    note = f"{provider.title} {said.version or '(version not told in time)'}, {count}"
    if seat.billing == "subscription":
        note += ", on a subscription"
    if seat.tools:
        note += ", with its tools"
    return SeatOffer(
        name=seat.name,
        kind=KIND,
        capability=capability.model_dump(mode="json", exclude_none=True),
        concurrency=seat.concurrency,
        exclusive=exclusive(seat, environ),
        limits=seat.limits(),
        requests_per_minute=seat.requests_per_minute,
        config={**seat.model_dump(mode="json"), "program": said.program},
        program=Path(said.program).name,
        note=note,
    )
