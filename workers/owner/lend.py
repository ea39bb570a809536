"""The owner's terms in the seats file: the keys `owner` and `lend`.

Both may stand in a seat's table of any profile. They are removed before the profile's probe sees the table.
The terms of a table apply to the seat of its `name`, else of its `provider`. The only table of a kind,
without a name, applies to every seat of that kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gridq.config import time_zones
from gridq.errors import ConfigError, first_fault, suggest_fix
from gridq.protocol.durations import parse_duration
from gridq.protocol.models import Json, SeatOffer
from workers.owner.hours import Hours, parse

AGENT = r"^(team:)?[A-Za-z0-9_.@-]{1,64}$"
OWNER = r"^[A-Za-z0-9_.@-]{1,64}$"
MAX_IDLE_SECONDS = 24 * 3600.0


class Lend(BaseModel):
    """The `lend` table: limits on what is lent. Without it the seat is lent in full, at any time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_most: int | None = Field(None, ge=1, le=512, description="Maximum number of stages at once.")
    timezone: str | None = Field(None, description="Time zone of `hours`. Default: this machine's.")
    hours: str | None = Field(
        None, description="Hours in which the seat is lent, such as 19:00-08:00 Mon-Fri, Sat, Sun."
    )
    only_when_idle: float | None = Field(
        None, description="Seconds without use of the machine, and of the seat's program, before it is lent."
    )

    models: tuple[str, ...] = Field((), description="Models or model families to lend. Default: all.")
    share: float | None = Field(
        None, gt=0, le=1, description="Part of each of the seat's budgets to lend, such as 0.6."
    )
    agents: tuple[Annotated[str, Field(pattern=AGENT)], ...] = Field(
        (), description="Agents, and teams as team:<name>, to lend to. Default: everybody."
    )

    @field_validator("timezone")
    @classmethod
    def _zone(cls, value: str | None) -> str | None:
        return value if value is None else time_zones.check_zone(value)

    @field_validator("hours")
    @classmethod
    def _hours(cls, value: str | None) -> str | None:
        if value is not None:
            parse(value)
        return value

    @field_validator("only_when_idle", mode="before")
    @classmethod
    def _idle(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = parse_duration(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 1 <= value <= MAX_IDLE_SECONDS
        ):
            raise ValueError("must be a time from 1s to 24h, such as 10m")
        return value

    def parse_hours(self) -> Hours | None:
        """Return the hours in which the seat is lent; None: always."""
        if self.hours is None:
            return None
        return parse(self.hours, time_zones.find_zone(self.timezone) if self.timezone else None)


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which one seat is lent to the grid."""

    owner: str = ""
    lend: Lend = field(default_factory=Lend)

    @property
    def lends_to(self) -> tuple[str, ...]:
        """The agents and teams that it is lent to, its owner included; empty: everybody."""
        agents = self.lend.agents
        return tuple(dict.fromkeys((*agents, self.owner))) if agents and self.owner else agents

    def apply_to(self, offer: SeatOffer) -> SeatOffer:
        """Return the part of a seat's slots, models and budgets that is lent. ValueError: nothing is left."""
        lend = self.lend
        changed: dict[str, Json] = {}
        if lend.at_most is not None:
            changed["concurrency"] = min(lend.at_most, offer.concurrency)
        if lend.share is not None:
            share = Fraction(str(lend.share))
            changed["limits"] = [
                limit.model_copy(update={"amount": int(limit.amount * share)}) for limit in offer.limits
            ]
        if lend.models:
            capability = _select_models(offer.capability, lend.models)
            if not capability.get("models"):
                raise ValueError(f"it has none of the models in lend.models: {', '.join(lend.models)}")
            changed |= {"capability": capability, "config": _select_models(offer.config, lend.models)}
        return offer.model_copy(update=changed) if changed else offer


class _OwnerKeys(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    owner: Annotated[str, Field(pattern=OWNER)] = ""
    lend: Lend = Field(default_factory=Lend)


class Owners:
    """The terms of all seats. `split` reads them from the tables of the seats file."""

    def __init__(self) -> None:
        self._terms: dict[tuple[str, str], Terms] = {}

    def split(self, tables: Mapping[str, Json]) -> dict[str, Json]:
        """Keep the terms and return the tables without `owner` and `lend`. ConfigError names the
        wrong key.
        """
        return {kind: self._split_kind(kind, table) for kind, table in tables.items()}

    def terms_of(self, kind: str, seat: str) -> Terms:
        return self._terms.get((kind, seat)) or self._terms.get((kind, "")) or Terms()

    def _split_kind(self, kind: str, table: Json) -> Json:
        if isinstance(table, list):
            return [
                self._split_table(kind, each, f"{kind}[{at}]", listed=True) for at, each in enumerate(table)
            ]
        return self._split_table(kind, table, kind)

    def _split_table(self, kind: str, table: Json, path: str, listed: bool = False) -> Json:
        if not isinstance(table, dict) or not table.keys() & {"owner", "lend"}:
            return table
        try:
            keys = _OwnerKeys.model_validate(table)
        except ValidationError as exc:
            name, reason = first_fault(exc)
            raise ConfigError(
                f"The seats file is invalid: {path}.{name}",
                {
                    "path": f"{path}.{name}",
                    "reason": reason,
                    "expected": 'owner = "NAME", and in lend: ' + ", ".join(Lend.model_fields),
                    **suggest_fix(exc, _OwnerKeys),
                },
            ) from None
        name = table.get("name") or (table.get("provider") if listed else None) or ""
        if isinstance(name, str) and (name or not listed):
            self._terms[kind, name] = Terms(keys.owner, keys.lend)
        return {key: value for key, value in table.items() if key not in ("owner", "lend")}


def _select_models(descriptor: Mapping[str, Json], wanted: Collection[str]) -> dict[str, Json]:
    """Return the descriptor with those of its `models` whose name or family is `wanted`."""
    models = descriptor.get("models")
    if not isinstance(models, list):
        return dict(descriptor)
    selected = [each for each in models if {each.get("name"), *(each.get("families") or ())} & set(wanted)]
    return {**descriptor, "models": selected}
