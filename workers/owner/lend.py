"""What the owner of a seat says in the seats file: `owner`, and the table `lend`.

Both may stand in a seat's table of every profile. They are read here and taken out before the profile's probe
sees the table. One of several tables speaks for the seat of its `name`, else of its `provider`, as the seat
is called then; the only one of its kind, without a name, for every seat of that kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gridq.config import time_zones
from gridq.errors import ConfigError, first_fault
from gridq.protocol.models import Json, SeatOffer
from workers.owner.hours import Hours, parse

AGENT = r"^(team:)?[A-Za-z0-9_.@-]{1,64}$"
OWNER = r"^[A-Za-z0-9_.@-]{1,64}$"
LONGEST_IDLE = 24 * 3600.0

_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|m|h)?")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600}


class Lend(BaseModel):
    """The `lend` table: as far as its keys allow a seat is lent, without it always."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_most: int | None = Field(None, ge=1, le=512, description="stages at once")
    timezone: str | None = Field(None, description="of `hours`; None: this machine's")
    hours: str | None = Field(None, description="when: 19:00-08:00 Mon-Fri, Sat, Sun")
    only_when_idle: float | None = Field(
        None, description="seconds for which nobody may have used the machine or the seat's program"
    )

    models: tuple[str, ...] = Field((), description="names or families of models; none: all that it has")
    share: float | None = Field(
        None, gt=0, le=1, description="of each of the seat's budgets; the rest is the owner's"
    )
    agents: tuple[Annotated[str, Field(pattern=AGENT)], ...] = Field(
        (), description="agents, and teams as team:<name>; none: everybody"
    )

    @field_validator("timezone")
    @classmethod
    def _zone(cls, value: str | None) -> str | None:
        return value if value is None else time_zones.checked(value)

    @field_validator("hours")
    @classmethod
    def _hours(cls, value: str | None) -> str | None:
        if value is not None:
            parse(value)
        return value

    @field_validator("only_when_idle", mode="before")
    @classmethod
    def _idle(cls, value: Any) -> Any:
        match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is not None:
            value = float(match[1]) * _UNITS[match[2] or "s"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= LONGEST_IDLE:
            raise ValueError("must be a time from 1s to 24h, such as 10m")
        return value

    def when(self) -> Hours | None:
        """The hours in which the seat is lent; None: at any."""
        if self.hours is None:
            return None
        return parse(self.hours, time_zones.known(self.timezone) if self.timezone else None)


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms one seat is in the grid."""

    owner: str = ""
    lend: Lend = field(default_factory=Lend)

    @property
    def lends_to(self) -> tuple[str, ...]:
        """Whom it is lent to alone, its owner always among them; empty: everybody."""
        agents = self.lend.agents
        return tuple(dict.fromkeys((*agents, self.owner))) if agents and self.owner else agents

    def applied(self, offer: SeatOffer) -> SeatOffer:
        """What of a seat is lent: its slots, models and budgets, as far as the terms allow. ValueError: it
        has nothing to lend.
        """
        lend = self.lend
        changed: dict[str, Json] = {}
        if lend.at_most is not None:
            changed["concurrency"] = min(lend.at_most, offer.concurrency)
        if lend.share is not None:
            share = Fraction(str(lend.share))
            changed["limits"] = [
                limit.model_copy(update={"most": int(limit.most * share)}) for limit in offer.limits
            ]
        if lend.models:
            capability = _narrowed(offer.capability, lend.models)
            if not capability.get("models"):
                raise ValueError(f"it has none of the models that are lent: {', '.join(lend.models)}")
            changed |= {"capability": capability, "config": _narrowed(offer.config, lend.models)}
        return offer.model_copy(update=changed) if changed else offer


class _Said(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    owner: Annotated[str, Field(pattern=OWNER)] = ""
    lend: Lend = Field(default_factory=Lend)


class Owners:
    """What the seats file says of owners. `split` takes it out of the tables."""

    def __init__(self) -> None:
        self._terms: dict[tuple[str, str], Terms] = {}

    def split(self, tables: Mapping[str, Json]) -> dict[str, Json]:
        """The tables without `owner` and `lend`. ConfigError names the one that is wrong."""
        return {kind: self._without(kind, table) for kind, table in tables.items()}

    def of(self, kind: str, seat: str) -> Terms:
        """The terms of a seat."""
        return self._terms.get((kind, seat)) or self._terms.get((kind, "")) or Terms()

    def unused(self, seats: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """(kind, name) of the tables with terms for which none of the `seats` is there."""
        there = set(seats)
        return [each for each in self._terms if each[1] and each not in there]

    def _without(self, kind: str, table: Json) -> Json:
        if isinstance(table, list):
            return [self._one(kind, each, f"{kind}[{at}]", listed=True) for at, each in enumerate(table)]
        return self._one(kind, table, kind)

    def _one(self, kind: str, table: Json, path: str, listed: bool = False) -> Json:
        if not isinstance(table, dict) or not table.keys() & {"owner", "lend"}:
            return table
        try:
            said = _Said.model_validate(table)
        except ValidationError as exc:
            name, reason = first_fault(exc)
            raise ConfigError(
                f"What a seat's table says of its owner is not usable: {path}.{name}",
                {
                    "path": f"{path}.{name}",
                    "reason": reason,
                    "expected": 'owner = "NAME", and in lend: ' + ", ".join(Lend.model_fields),
                },
            ) from None
        name = table.get("name") or (table.get("provider") if listed else None) or ""
        if isinstance(name, str) and (name or not listed):
            self._terms[kind, name] = Terms(said.owner, said.lend)
        return {key: value for key, value in table.items() if key not in ("owner", "lend")}


def _narrowed(about: Mapping[str, Json], wanted: Collection[str]) -> dict[str, Json]:
    """A descriptor with those of its `models` alone that are called so, or of such a family."""
    models = about.get("models")
    if not isinstance(models, list):
        return dict(about)
    kept = [each for each in models if {each.get("name"), *(each.get("families") or ())} & set(wanted)]
    return {**about, "models": kept}
