"""The llm seats of a machine: those of the seats file, and those that the environment names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from gridq.errors import ConfigError
from gridq.protocol.models import Json, ProbeReport, SeatOffer
from workers.profiles.llm import seats_from_environment, seats_from_table
from workers.profiles.llm.capability import LlmCapability, LlmSeat, RemoteModel
from workers.profiles.llm.credentials import key_of
from workers.profiles.llm.model_list import listed
from workers.profiles.llm.model_prices import priced_models
from workers.profiles.llm.programs import discovery, program_seats
from workers.profiles.llm.providers import PROVIDERS

KIND = "llm"


def probe(
    config: Mapping[str, Json] | Sequence[Json], environ: Mapping[str, str] = os.environ
) -> ProbeReport:
    """Every seat that could work, and a sentence for each that could not.

    `config` is the list of `[[llm]]` tables, or one `[llm]` table. ConfigError: a table that is wrong, an
    endpoint on this machine, two seats of one name or one login, a budget that no price is known for.
    """
    given = config if not isinstance(config, Mapping) else [config] if config else []
    seats = seats_from_table.read(given, environ)
    programs = program_seats.read(given, environ)
    missing: list[str] = []
    absent: list[str] = []
    seats += seats_from_environment.seats(seats, environ, absent, others=bool(programs))
    usable = []
    for seat in seats:
        try:
            usable.append((seat, key_of(seat, environ)))
        except ConfigError as error:
            missing.append(f"Seat {seat.name!r}: {error.message}")
    with ThreadPoolExecutor(1) as beside:  # endpoints and programs are asked at once
        looking = beside.submit(program_seats.offers, programs, missing, environ)
        told = listed([(seat, key) for seat, key in usable if not seat.models])
        found = looking.result()
    for seat, _ in usable:
        models = seat.models or told.get(seat.name, ())
        if isinstance(models, str):
            missing.append(
                f"Seat {seat.name!r}: its models could not be listed ({models}); declare them in its table"
            )
        elif not models:
            missing.append(f"Seat {seat.name!r}: its endpoint lists no model")
        else:
            priced = priced_models(seat, models, missing)
            if priced:
                found.append(_offer(seat, priced))
    unlent = discovery.unlent({seat.cli for seat in programs}, environ)
    return ProbeReport(found=found, missing=missing + absent, unlent=unlent)


def _offer(seat: LlmSeat, models: tuple[RemoteModel, ...]) -> SeatOffer:
    host = urlsplit(seat.url).netloc.rpartition("@")[2]
    login = seat.key_env or seat.key_file or "no key"
    provider = PROVIDERS.get(seat.provider or "")
    capability = LlmCapability(
        host=host,
        models=models,
        billing=seat.billing,
        states_cost=provider is not None and provider.states_cost,
    )
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    note = f"{count} at {host}" + (", without TLS" if seat.url.startswith("http:") else "")
    return SeatOffer(
        name=seat.name,
        kind=KIND,
        capability=capability.model_dump(mode="json", exclude_defaults=True),
        concurrency=seat.concurrency,
        exclusive=f"{seat.url.rstrip('/')} {login}",
        limits=seat.limits(),
        requests_per_minute=seat.requests_per_minute,
        config=seat.model_dump(mode="json"),
        note=note + (", on a subscription" if seat.billing == "subscription" else ""),
    )
