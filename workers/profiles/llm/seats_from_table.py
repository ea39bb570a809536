"""The `[[llm]]` tables of the seats file, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from gridq.errors import ConfigError
from gridq.protocol.models import Json
from workers.profiles.llm.budget import fault
from workers.profiles.llm.capability import LlmSeat
from workers.profiles.llm.credentials import login_of
from workers.profiles.llm.locality import on_this_machine
from workers.profiles.llm.programs.program_seats import is_cli
from workers.profiles.llm.providers import provider_of


def read(tables: Sequence[Json], environ: Mapping[str, str]) -> list[LlmSeat]:
    """The endpoints that `tables` declare; those with `cli` are read elsewhere. ConfigError names the table
    and the key at fault.
    """
    seats = [
        _parse(table, f"llm[{index}]", environ) for index, table in enumerate(tables) if not is_cli(table)
    ]
    _check_distinct(seats, environ)
    return seats


def _parse(table: Json, path: str, environ: Mapping[str, str]) -> LlmSeat:
    try:
        seat = LlmSeat.model_validate(_filled(table, path, environ))
    except ValidationError as exc:
        expected = "name and url, or provider; perhaps key_env or key_file, models, slots, budget"
        field, reason, expected = fault(exc, expected)
        raise ConfigError(
            "An llm seat's table is not usable",
            {"path": f"{path}.{field}" if field else path, "reason": reason, "expected": expected},
        ) from None
    if seat.key_env and seat.key_file:
        raise ConfigError("An llm seat has two keys", {"path": path, "fix": "keep key_env or key_file"})
    if seat.billing == "subscription" and seat.in_dollars:
        raise ConfigError(
            f"The llm seat {seat.name!r} has a budget in dollars, and a subscription, whose calls cost none",
            {"path": f"{path}.budget", "fix": "count requests or tokens in its budgets"},
        )
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


def _filled(table: Json, path: str, environ: Mapping[str, str]) -> Json:
    """`table` with what its provider fills in where it says nothing itself."""
    name = table.get("provider") if isinstance(table, dict) else None
    if not isinstance(name, str):
        return table
    provider = provider_of(name, f"{path}.provider")
    known: dict[str, Json] = {"name": provider.name, "api": provider.api}
    if provider.url is not None:
        known["url"] = provider.url
    elif "url" not in table:
        raise ConfigError(
            f"The provider {name!r} has no address of its own",
            {"path": f"{path}.url", "expected": "the URL at which your own answers", "fix": "add url = …"},
        )
    if provider.keys and "key_file" not in table:
        known["key_env"] = next((key for key in provider.keys if environ.get(key)), provider.keys[0])
    return known | table


def _check_distinct(seats: list[LlmSeat], environ: Mapping[str, str]) -> None:
    names: set[str] = set()
    logins: dict[tuple[str, str], str] = {}
    for index, seat in enumerate(seats):
        if seat.name in names:
            raise ConfigError(
                f"Two llm seats are called {seat.name!r}",
                {"path": f"llm[{index}].name", "fix": "give each its own name"},
            )
        names.add(seat.name)
        login = login_of(seat, environ)
        if login in logins:
            raise ConfigError(
                f"The llm seats {logins[login]!r} and {seat.name!r} are one login at one endpoint",
                {"path": f"llm[{index}]", "fix": "keep one of them and give it more slots"},
            )
        logins[login] = seat.name
