"""An `[[llm]]` table with `cli`: one login of a vendor's program, which its owner lends."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gridq.errors import ConfigError
from gridq.protocol.models import Json
from workers.profiles.llm.budget import Budgeted, fault
from workers.profiles.llm.capability import Billing, DeclaredModel
from workers.profiles.llm.programs.backend import CliLogin
from workers.profiles.llm.programs.environment import environment_of, login_of
from workers.profiles.llm.programs.vendors.all_vendors import PROVIDERS


class CliSeat(Budgeted):
    """One such table.

    `home` is the folder that holds the login, where it is not the program's usual one; `program` the path of
    the program, where PATH does not lead to it. `env` names further variables that the program is to see, so
    a key that it is to use in place of a login. `tools` lets it use its tools and files.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    cli: str
    home: str | None = Field(default=None, pattern=r"^[/~]")
    program: str | None = Field(default=None, pattern=r"^[/~]")
    models: tuple[DeclaredModel, ...] = Field(min_length=1)
    concurrency: Literal[1] = 1
    env: tuple[str, ...] = Field(default=(), description="names of variables")
    args: tuple[str, ...] = Field(default=(), description="further arguments of the program")
    tools: bool = False
    billing: Billing = Field(default="subscription", description="metered where each call costs what it says")
    silence: float = Field(default=300.0, gt=0, description="seconds for which it may write nothing")

    def folder(self) -> str | None:
        """The folder of its login as a path, None where it is the usual one."""
        return None if self.home is None else str(Path(self.home).expanduser())


def parse(table: Mapping[str, Json], path: str) -> CliSeat:
    """The seat of one table. ConfigError names the field that is wrong."""
    told = table.get("cli")
    if told not in PROVIDERS:
        near = difflib.get_close_matches(str(told), PROVIDERS, 1)
        raise ConfigError(
            f"No program is known as {told!r}",
            {
                "path": f"{path}.cli",
                "expected": "one of " + ", ".join(PROVIDERS),
                "fix": f"use {near[0]!r}" if near else "give url and key_env of an endpoint instead",
            },
        )
    try:
        seat = CliSeat.model_validate(table)
    except ValidationError as exc:
        expected = "name, cli and models; perhaps home, program, env, args, tools, billing, budget, silence"
        field, reason, expected = fault(exc, expected)
        if field == "concurrency":
            expected = "1: two runs of a program on one login race for it and log its owner out"
        if field.startswith("url"):
            expected = "url or cli, not both"
        raise ConfigError(
            "An llm seat's table is not usable",
            {"path": f"{path}.{field}" if field else path, "reason": reason, "expected": expected},
        ) from None
    if seat.billing == "subscription" and seat.in_dollars:
        raise ConfigError(
            f"The llm seat {seat.name!r} has a budget in dollars, and a subscription, whose calls cost none",
            {
                "path": f"{path}.budget",
                "fix": 'count requests or tokens, or set billing = "metered"',
            },
        )
    return seat


def login(seat: CliSeat, environ: Mapping[str, str] = os.environ) -> CliLogin:
    """The login of a seat whose program is known, ready for calls; nothing is started."""
    provider = PROVIDERS[seat.cli]
    environment = environment_of(provider, seat.folder(), seat.env, environ)
    return CliLogin(
        provider=provider,
        program=seat.program or provider.programs[0],
        environment=environment,
        login=exclusive(seat, environ),
        silence=seat.silence,
        tools=seat.tools,
        args=seat.args,
        metered=seat.billing == "metered",
        secrets=tuple(environment[name] for name in seat.env if len(environment.get(name, "")) >= 8),
    )


def exclusive(seat: CliSeat, environ: Mapping[str, str] = os.environ) -> str:
    """What no other seat may share: the program and the folder of its login."""
    return f"{seat.cli} {login_of(PROVIDERS[seat.cli], seat.folder(), environ)}"
