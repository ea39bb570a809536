"""Parse and check the `[[llm]]` tables of the seats file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from gridq.errors import ConfigError, suggest_fix
from gridq.protocol.models import Json
from workers.model_apis.http.locality import is_local_url
from workers.profiles.llm.budget import describe_validation_error
from workers.profiles.llm.capability import LlmSeat
from workers.profiles.llm.credentials import identify_login
from workers.profiles.llm.programs.program_seats import is_program_table
from workers.profiles.llm.providers import find_provider


def parse_seats(tables: Sequence[Json], environ: Mapping[str, str]) -> list[LlmSeat]:
    """Return the endpoints that `tables` declare. `program_seats` reads the tables with `cli`.

    Raises ConfigError naming the wrong table and key.
    """
    seats = [
        _parse_seat(table, f"llm[{index}]", environ)
        for index, table in enumerate(tables)
        if not is_program_table(table)
    ]
    _check_distinct(seats, environ)
    return seats


def _parse_seat(table: Json, path: str, environ: Mapping[str, str]) -> LlmSeat:
    try:
        seat = LlmSeat.model_validate(_apply_provider(table, path, environ))
    except ValidationError as exc:
        expected = "name and url, or provider; optional: key_env or key_file, models, concurrency, budget"
        field, reason, expected = describe_validation_error(exc, expected)
        raise ConfigError(
            "An llm seat's table is not valid",
            {
                "path": f"{path}.{field}" if field else path,
                "reason": reason,
                "expected": expected,
                **_suggest_fix(exc, table),
            },
        ) from None
    if seat.key_env and seat.key_file:
        raise ConfigError(
            "An llm seat has two keys", {"path": path, "fix": "keep either key_env or key_file"}
        )
    stated = {"responses": seat.responses} | {
        f"models[{index}].responses": model.responses for index, model in enumerate(seat.models)
    }
    wrong = next((field for field, value in stated.items() if value and seat.api != "openai"), None)
    if wrong is not None:
        raise ConfigError(
            "Only an endpoint of the OpenAI API format has Responses",
            {"path": f"{path}.{wrong}", "expected": 'absent, or api = "openai"', "fix": "remove it"},
        )
    if seat.billing == "subscription" and seat.has_dollar_budget:
        raise ConfigError(
            f"The llm seat {seat.name!r} has a budget in dollars, but calls of a subscription have no price",
            {"path": f"{path}.budget", "fix": "limit requests or tokens in its budgets"},
        )
    if is_local_url(seat.url) and not seat.allow_loopback:
        raise ConfigError(
            f"The endpoint of the llm seat {seat.name!r} is on this machine",
            {
                "path": f"{path}.url",
                "expected": "an endpoint on another machine",
                "fix": "write it as [[gpu.engines]] with its url, since it is on this machine "
                "(allow_loopback = true is for tests)",
            },
        )
    return seat


def _suggest_fix(exc: ValidationError, table: Json) -> dict[str, str]:
    """Return `{"fix": …}` for a table that is no seat; empty if nothing is known."""
    where = exc.errors()[0]["loc"]
    if not isinstance(table, dict):
        return {"fix": 'write [[llm]], and below it name = "…"'}
    if where[:1] == ("models",) and len(where) <= 2 and exc.errors()[0]["type"] != "extra_forbidden":
        return {"fix": 'write models = [{ name = "…" }]'}
    if where == ("url",) and "url" in table:
        return {"fix": 'write url = "https://host/v1": no login, no query, no #'}
    if where == ("name",) and "name" in table:
        return {"fix": "use lower-case letters, digits, - and _ only, such as my-seat"}
    if where == ("budget",):
        return {"fix": "write dollars as a number: budget = 50"}
    if where == ("key",):
        return {"fix": "put the key into an environment variable and name that in key_env, or use key_file"}
    return suggest_fix(exc, LlmSeat)


def _apply_provider(table: Json, path: str, environ: Mapping[str, str]) -> Json:
    """Return `table` with the defaults of its provider."""
    name = table.get("provider") if isinstance(table, dict) else None
    if not isinstance(name, str):
        return table
    provider = find_provider(name, f"{path}.provider")
    defaults: dict[str, Json] = {"name": provider.name, "api": provider.api}
    if provider.url is not None:
        defaults["url"] = provider.url
    elif "url" not in table:
        raise ConfigError(
            f"The provider {name!r} has no default URL",
            {"path": f"{path}.url", "expected": "the URL of your own endpoint", "fix": "add url = …"},
        )
    if provider.keys and "key_file" not in table:
        defaults["key_env"] = next((key for key in provider.keys if environ.get(key)), provider.keys[0])
    return defaults | table


def _check_distinct(seats: list[LlmSeat], environ: Mapping[str, str]) -> None:
    names: set[str] = set()
    logins: dict[tuple[str, str], str] = {}
    for index, seat in enumerate(seats):
        if seat.name in names:
            raise ConfigError(
                f"Two llm seats have the name {seat.name!r}",
                {"path": f"llm[{index}].name", "fix": "give each seat its own name"},
            )
        names.add(seat.name)
        login = identify_login(seat, environ)
        if login in logins:
            raise ConfigError(
                f"The llm seats {logins[login]!r} and {seat.name!r} use one login at one endpoint",
                {"path": f"llm[{index}]", "fix": "keep one of them and raise its concurrency"},
            )
        logins[login] = seat.name
