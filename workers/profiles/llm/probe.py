"""Find the llm seats of a machine: those of the seats file, and those that the environment declares."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from pydantic import ValidationError

from gridq.errors import ConfigError, GridError
from gridq.protocol.models import Json, ProbeReport, SeatOffer
from gridq.protocol.queue_names import LLM
from workers.profiles.llm import seats_from_environment, seats_from_table
from workers.profiles.llm.capability import LlmCapability, LlmSeat, RemoteModel
from workers.profiles.llm.credentials import (
    list_betas,
    make_client,
    read_key,
    read_stated_responses,
    serves_responses,
)
from workers.profiles.llm.listing_errors import DECLARE, ListingError, explain_listing_error, is_url_unusual
from workers.profiles.llm.model_prices import add_prices
from workers.profiles.llm.price_list import PriceList
from workers.profiles.llm.programs import discovery, program_seats
from workers.profiles.llm.providers import PROVIDERS

LISTING_SECONDS = 3.0
"""Time for the model lists of all endpoints together. They answer within a second, but a machine with many
seats has to set up as many connections at once.
"""


def probe(
    config: Mapping[str, Json] | Sequence[Json], environ: Mapping[str, str] = os.environ
) -> ProbeReport:
    """Return every seat that can work, and a sentence for each one that cannot.

    `config` is the list of `[[llm]]` tables, or one `[llm]` table. Raises ConfigError for a wrong table, an
    endpoint on this machine, two seats with one name or one login, and a budget whose models have no known
    price.
    """
    tables = config if not isinstance(config, Mapping) else [config] if config else []
    seats = seats_from_table.parse_seats(tables, environ)
    programs = program_seats.parse_seats(tables, environ)
    missing: list[str] = []
    missing_keys: list[str] = []
    seats += seats_from_environment.read_seats(seats, environ, missing_keys, has_programs=bool(programs))
    usable = []
    for seat in seats:
        try:
            usable.append((seat, read_key(seat, environ)))
        except ConfigError as error:
            missing.append(f"Seat {seat.name!r}: {error.message}")
    with ThreadPoolExecutor(1) as executor:  # check endpoints and programs at the same time
        program_offers = executor.submit(program_seats.offer_seats, programs, missing, environ)
        asked = [(seat, key) for seat, key in usable if not seat.models or is_url_unusual(seat)]
        listed = _list_models(asked)
        found = program_offers.result()
    price_list = PriceList()
    for seat, _ in usable:
        models = seat.models or listed.get(seat.name, ())
        said = listed.get(seat.name)
        if seat.models and isinstance(said, ListingError) and said.url:
            missing.append(f"Seat {seat.name!r}: its endpoint lists no models: {said.text}")
        if isinstance(models, ListingError):
            missing.append(f"Seat {seat.name!r}: cannot list its endpoint's models: {models.text}")
        elif not models:
            missing.append(f"Seat {seat.name!r}: its endpoint lists no models")
        else:
            priced = add_prices(seat, models, missing, price_list)
            if not seat.models:
                priced = tuple(sorted(priced, key=_rank_listed))
            if priced:
                found.append(_make_offer(seat, priced))
    not_lent = discovery.list_not_lent({seat.cli for seat in programs}, environ)
    return ProbeReport(found=found, missing=missing + missing_keys, not_lent=not_lent)


def _list_models(
    seats: Sequence[tuple[LlmSeat, str | None]],
) -> dict[str, tuple[RemoteModel, ...] | ListingError]:
    """Return the models that each seat's endpoint lists, or the reason why it lists none, by seat name.

    `seats` are pairs of a seat and its key. The threads are daemons, so that a hanging name server cannot
    keep the process alive.
    """
    results: dict[str, tuple[RemoteModel, ...] | ListingError] = {}

    def ask(seat: LlmSeat, key: str | None) -> None:
        client = make_client(seat, key)
        try:
            results[seat.name] = tuple(
                RemoteModel(name=name, embeddings=kind == "embeddings", any=kind == "text")
                for name, kind in client.list_models(LISTING_SECONDS).items()
                if name.lower() != "any"
            )
        except GridError as error:
            results[seat.name] = explain_listing_error(seat, key, error)
        except ValidationError:
            results[seat.name] = ListingError(f"one has no name; {DECLARE}")
        finally:
            client.close()

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in seats]
    deadline = time.monotonic() + LISTING_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = ListingError(f"no answer in time; {DECLARE}")
    return {seat.name: results.get(seat.name, late) for seat, _ in seats}


def _rank_listed(model: RemoteModel) -> tuple[bool, float, str]:
    """Return the place of a listed model in the order in which its seat prefers them: the cheapest first, by
    the sum of its prices. Those without a price follow, by name; an endpoint's own order says nothing.
    """
    price = (model.price_in or 0.0) + (model.price_out or 0.0)
    return not price, price, model.name


def _make_offer(seat: LlmSeat, models: tuple[RemoteModel, ...]) -> SeatOffer:
    host = urlsplit(seat.url).netloc.rpartition("@")[2]
    login = seat.key_env or seat.key_file or "no key"
    provider = PROVIDERS.get(seat.provider or "")
    stated, usual = read_stated_responses(seat), serves_responses(seat)
    models = tuple(
        model.model_copy(update={"responses": stated.get(model.name, usual), "betas": list_betas(seat)})
        for model in models
    )
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
        kind=LLM,
        capability=capability.model_dump(mode="json", exclude_defaults=True),
        concurrency=seat.concurrency,
        exclusive=f"{seat.url.rstrip('/')} {login}",
        limits=seat.limits(),
        requests_per_minute=seat.requests_per_minute,
        config=seat.model_dump(mode="json")  # of a model only what its table says: the rest is the seat's
        | {"models": [model.model_dump(mode="json", exclude_unset=True) for model in seat.models]},
        note=note + (", on a subscription" if seat.billing == "subscription" else ""),
    )
