"""The llm seats of a machine: those of the seats file, and one from OPENAI_API_KEY where it is set."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from gridq.errors import ConfigError, GridError, first_fault
from gridq.protocol import Json, ProbeReport, SeatOffer
from workers.profiles.llm.capability import LlmCapability, LlmSeat, RemoteModel
from workers.wires.anthropic import AnthropicWire
from workers.wires.openai import OpenAIWire
from workers.wires.remote import RemoteWire

KIND = "llm"
OPENAI_URL = "https://api.openai.com/v1"
LISTING_SECONDS = 1.5
"""A probe has two seconds; endpoints whose models are not declared are asked for them, all at once, this
long.
"""

MICRO = 1_000_000


def probe(
    config: Mapping[str, Json] | Sequence[Json], environ: Mapping[str, str] = os.environ
) -> ProbeReport:
    """Every seat that could work, and a sentence for each that could not.

    `config` is the list of `[[llm]]` tables, or one `[llm]` table. ConfigError: a table that is wrong, an
    endpoint on this machine, two seats of one name or one login.
    """
    tables = config if not isinstance(config, Mapping) else [config] if config else []
    seats = [_parse(table, f"llm[{index}]") for index, table in enumerate(tables)]
    _check_distinct(seats)
    missing: list[str] = []
    from_environment = _environment_seat(seats, environ, missing)
    if from_environment is not None:
        seats.append(from_environment)
    elif not seats:
        missing.append("No [[llm]] seat is configured and OPENAI_API_KEY is not set")
    usable = []
    for seat in seats:
        try:
            usable.append((seat, key_of(seat, environ)))
        except ConfigError as error:
            missing.append(f"Seat {seat.name!r}: {error.message}")
    listed = _listed([(seat, key) for seat, key in usable if not seat.models])
    found = []
    for seat, _ in usable:
        models = seat.models or listed.get(seat.name, ())
        if isinstance(models, str):
            missing.append(
                f"Seat {seat.name!r}: its models could not be listed ({models}); declare them in its table"
            )
        elif not models:
            missing.append(f"Seat {seat.name!r}: its endpoint lists no model")
        else:
            found.append(_offer(seat, models))
    return ProbeReport(found=found, missing=missing)


def key_of(seat: LlmSeat, environ: Mapping[str, str] = os.environ) -> str | None:
    """The seat's key, read where the seat says; None where it has none. ConfigError: it is not there."""
    if seat.key_env is not None:
        key = environ.get(seat.key_env, "").strip()
        if not key:
            raise ConfigError(
                f"the environment variable {seat.key_env}, which should hold its key, is not set",
                {"path": f"llm.{seat.name}.key_env", "fix": f"export {seat.key_env}=…"},
            )
        return key
    if seat.key_file is not None:
        try:
            key = Path(seat.key_file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"its key file cannot be read ({type(exc).__name__})",
                {"path": f"llm.{seat.name}.key_file", "fix": "correct the path or its permissions"},
            ) from None
        if not key:
            raise ConfigError("its key file is empty", {"path": f"llm.{seat.name}.key_file"})
        return key
    return None


def wire_of(seat: LlmSeat, key: str | None) -> RemoteWire:
    """The seat's endpoint in the wire that it speaks; nothing is sent yet."""
    made = AnthropicWire if seat.wire == "anthropic" else OpenAIWire
    return made(seat.url, key, headers=seat.headers, silence=seat.silence)


def on_this_machine(url: str) -> bool:
    """Whether `url` names this very machine: a loopback name or address, its own name, an address it has.

    Other names are not looked up: a probe must not hang on a name server.
    """
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    own = socket.gethostname().lower()
    if host == "localhost" or host.endswith(".localhost") or host in {own, f"{own}.local"}:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as own_socket:
            own_socket.bind((str(address), 0))  # only an address of this machine can be bound
    except OSError:
        return False
    return True


def _parse(table: Json, path: str) -> LlmSeat:
    try:
        seat = LlmSeat.model_validate(table)
    except ValidationError as exc:
        field, reason = first_fault(exc)
        raise ConfigError(
            "An llm seat's table is not usable",
            {
                "path": f"{path}.{field}" if field else path,
                "reason": reason,
                "expected": "name and url; perhaps key_env or key_file, models, lanes, budget, silence",
            },
        ) from None
    if seat.key_env and seat.key_file:
        raise ConfigError("An llm seat has two keys", {"path": path, "fix": "keep key_env or key_file"})
    if on_this_machine(seat.url) and not seat.allow_loopback:
        raise ConfigError(
            f"The llm seat {seat.name!r} is an endpoint on this machine",
            {
                "path": f"{path}.url",
                "expected": "an endpoint on another machine",
                "fix": "let the gpu profile run the model: list its file under [[gpu.models]] "
                "(allow_loopback = true is for tests)",
            },
        )
    return seat


def _check_distinct(seats: list[LlmSeat]) -> None:
    names: set[str] = set()
    logins: dict[tuple[str, str | None, str | None], str] = {}
    for index, seat in enumerate(seats):
        if seat.name in names:
            raise ConfigError(
                f"Two llm seats are called {seat.name!r}",
                {"path": f"llm[{index}].name", "fix": "give each its own name"},
            )
        names.add(seat.name)
        login = (seat.url.rstrip("/"), seat.key_env, seat.key_file)
        if login in logins:
            raise ConfigError(
                f"The llm seats {logins[login]!r} and {seat.name!r} are one login at one endpoint",
                {"path": f"llm[{index}]", "fix": "keep one of them and give it more lanes"},
            )
        logins[login] = seat.name


def _environment_seat(seats: list[LlmSeat], environ: Mapping[str, str], missing: list[str]) -> LlmSeat | None:
    if not environ.get("OPENAI_API_KEY", "").strip():
        return None
    url = environ.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL
    if any(seat.key_env == "OPENAI_API_KEY" or seat.name == "openai" for seat in seats):
        return None
    if on_this_machine(url):
        missing.append(
            "OPENAI_BASE_URL is on this machine, where models belong to the gpu profile: no seat of it"
        )
        return None
    try:
        names = environ.get("OPENAI_MODEL", "").replace(",", " ").split()
        models = tuple(RemoteModel(name=name) for name in names)
        return LlmSeat(name="openai", url=url, key_env="OPENAI_API_KEY", models=models)
    except ValidationError:
        missing.append("OPENAI_BASE_URL or OPENAI_MODEL is not usable: no seat from the environment")
        return None


def _listed(seats: list[tuple[LlmSeat, str | None]]) -> dict[str, tuple[RemoteModel, ...] | str]:
    """What each endpoint lists, or in words why not. Daemon threads: a name server that hangs costs nothing
    but time.
    """
    answers: dict[str, tuple[RemoteModel, ...] | str] = {}

    def ask(seat: LlmSeat, key: str | None) -> None:
        wire = wire_of(seat, key)
        try:
            names = wire.models(LISTING_SECONDS)
            answers[seat.name] = tuple(RemoteModel(name=name) for name in names if name.lower() != "any")
        except (GridError, ValidationError) as error:
            answers[seat.name] = error.message if isinstance(error, GridError) else "a model without a name"
        finally:
            wire.close()

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in seats]
    until = time.monotonic() + LISTING_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return {seat.name: answers.get(seat.name, "no answer in time") for seat, _ in seats}


def _offer(seat: LlmSeat, models: tuple[RemoteModel, ...]) -> SeatOffer:
    host = urlsplit(seat.url).netloc.rpartition("@")[2]
    login = seat.key_env or seat.key_file or "no key"
    return SeatOffer(
        name=seat.name,
        kind=KIND,
        capability=LlmCapability(host=host, models=models).model_dump(mode="json"),
        lanes=seat.lanes,
        exclusive=f"{seat.url.rstrip('/')} {login}",
        budget_micro_dollars=None if seat.budget is None else round(seat.budget * MICRO),
        budget_period=seat.period,
        requests_per_minute=seat.requests_per_minute,
        config=seat.model_dump(mode="json"),
        note=f"{len(models)} models at {host}" + (", without TLS" if seat.url.startswith("http:") else ""),
    )
