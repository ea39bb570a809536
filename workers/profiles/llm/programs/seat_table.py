"""Parse an `[[llm]]` table with `cli`: one login of a vendor's program that its owner lends."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gridq.errors import ConfigError, suggest_fix
from gridq.protocol.models import Json
from workers.profiles.llm.budget import SeatBudgets, describe_validation_error
from workers.profiles.llm.capability import Billing, DeclaredModel
from workers.profiles.llm.programs.backend import ProgramLogin
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS

COMMON_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TMPDIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        # for keyrings, which hold logins on many desktops
        *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    }
)
"""The variables that every program gets, besides its own and those that the seat's table names. Others, such
as a key of the worker's, could replace its owner's login.
"""

PLAIN_OUTPUT = {"TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC"}
"""Makes programs print plain text, ask nothing and print times in UTC."""


class ProgramSeat(SeatBudgets):
    """One `[[llm]]` table with `cli`.

    `home` is the folder of the login if it is not the program's default, `program` the path of the program if
    it is not on PATH. `env` names further variables that the program may see, such as a key to use in place
    of a login. `tools` lets the program use its tools and files.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    cli: str
    home: str | None = Field(default=None, pattern=r"^[/~]")
    program: str | None = Field(default=None, pattern=r"^[/~]")
    models: tuple[DeclaredModel, ...] = Field(min_length=1)
    concurrency: Literal[1] = 1
    env: tuple[str, ...] = Field(default=(), description="names of environment variables")
    args: tuple[str, ...] = Field(default=(), description="additional arguments of the program")
    tools: bool = False
    billing: Billing = Field(
        default="subscription", description="metered if each call costs what the program reports"
    )
    silence: float = Field(default=300.0, gt=0, description="seconds that the program may write nothing")

    def expand_home(self) -> str | None:
        """Return the path of the login's folder, None for the default one."""
        return None if self.home is None else str(Path(self.home).expanduser())


def parse_seat(table: Mapping[str, Json], path: str) -> ProgramSeat:
    """Return the seat of one table. Raises ConfigError naming the wrong field."""
    cli = table.get("cli")
    if cli not in VENDOR_PROGRAMS:
        matches = difflib.get_close_matches(str(cli), VENDOR_PROGRAMS, 1)
        raise ConfigError(
            f"Unknown program {cli!r}",
            {
                "path": f"{path}.cli",
                "expected": "one of " + ", ".join(VENDOR_PROGRAMS),
                "fix": f"use {matches[0]!r}" if matches else "set url and key_env of an endpoint instead",
            },
        )
    try:
        seat = ProgramSeat.model_validate(table)
    except ValidationError as exc:
        expected = "name, cli and models; optional: home, program, env, args, tools, billing, budget, silence"
        field, reason, expected = describe_validation_error(exc, expected)
        if field == "concurrency":
            expected = "1: two runs of a program on one login log its owner out"
        if field.startswith("url"):
            expected = "url or cli, not both"
        raise ConfigError(
            "An llm seat's table is not valid",
            {
                "path": f"{path}.{field}" if field else path,
                "reason": reason,
                "expected": expected,
                **suggest_fix(exc, ProgramSeat),
            },
        ) from None
    if seat.billing == "subscription" and seat.has_dollar_budget:
        raise ConfigError(
            f"The llm seat {seat.name!r} has a budget in dollars, but calls of a subscription have no price",
            {
                "path": f"{path}.budget",
                "fix": 'limit requests or tokens, or set billing = "metered"',
            },
        )
    return seat


def make_login(seat: ProgramSeat, environ: Mapping[str, str] = os.environ) -> ProgramLogin:
    """Return the login of a seat, ready for calls. Starts nothing."""
    program = VENDOR_PROGRAMS[seat.cli]
    environment = build_environment(seat, environ)
    return ProgramLogin(
        program=program,
        path=seat.program or program.names[0],
        environment=environment,
        folder=find_login_folder(seat, environ),
        identity=identify_login(seat, environ),
        silence=seat.silence,
        allows_tools=seat.tools,
        args=seat.args,
        is_metered=seat.billing == "metered",
        secrets=tuple(environment[name] for name in seat.env if len(environment.get(name, "")) >= 8),
    )


def build_environment(seat: ProgramSeat, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the seat's program."""
    program, home = VENDOR_PROGRAMS[seat.cli], seat.expand_home()
    names = {*COMMON_VARIABLES, *program.environment, *(program.home if home is None else ()), *seat.env}
    environment = {name: value for name, value in environ.items() if name in names or name.startswith("LC_")}
    if home is not None:
        environment |= {name: value.format(home=home) for name, value in program.home.items()}
    return {**PLAIN_OUTPUT, **environment, **program.settings}


def identify_login(seat: ProgramSeat, environ: Mapping[str, str] = os.environ) -> str:
    """Return the program and the folder of its login, which no other seat may share."""
    return f"{seat.cli} {find_login_folder(seat, environ)}"


def find_login_folder(seat: ProgramSeat, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the resolved path of the folder that holds the login."""
    home = seat.expand_home()
    if home is not None:
        folder = Path(home)
    else:
        for each in VENDOR_PROGRAMS[seat.cli].homes:
            path = environ.get(each.removeprefix("$"), "") if each.startswith("$") else each
            if path:
                break
        user_home = environ.get("HOME", "")
        folder = Path(user_home + path[1:]) if path.startswith("~") and user_home else Path(path).expanduser()
    return Path(os.path.abspath(folder)).resolve()
