"""The seats of this machine: what the profiles found, what the operator's `seats.toml` adds, and the built-in
`local` seat.

`<home>/seats.toml` may hold a table for each kind (`[gpu]`, `[[llm]]`, …), which that profile's probe reads,
and `[local]` with `concurrency` for the built-in seat.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gridq.errors import ConfigError, first_fault
from gridq.profiles.profile import Profile
from gridq.protocol import queue_names
from gridq.protocol.models import Json, SeatOffer
from workers.owner.lend import Terms

FILE = "seats.toml"
LOCAL_KIND = "local"


class LocalSeat(BaseModel):
    """The `[local]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int = Field(4, ge=1, le=512)


@dataclass(frozen=True, slots=True)
class Seat:
    """One seat of this machine, ready to be served: its offer, the profile that runs it (None: built-in), its
    queues, the terms on which its owner lends it, and its whole budget, of which the offer has what is lent.
    """

    offer: SeatOffer
    queues: tuple[str, ...]
    profile: Profile | None = None
    capability: BaseModel | None = None
    terms: Terms = field(default_factory=Terms)
    whole_budget: int | None = None

    @property
    def name(self) -> str:
        return self.offer.name


@dataclass(slots=True)
class ProbeResult:
    """What a machine offers, and in words what was not found and why, and what could be lent and is not."""

    seats: list[Seat] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unlent: list[str] = field(default_factory=list)

    def chosen(self, names: Sequence[str], path: str = "--seat") -> list[Seat]:
        """The seats called `names`, or all. ConfigError, at `path`: this machine has no such seat."""
        known = {seat.name for seat in self.seats}
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"This machine has no seat {name!r}",
                    {
                        "path": path,
                        "expected": "one of " + ", ".join(seat.name for seat in self.seats),
                        "reason": "; ".join(self.missing) or "nothing else was found",
                        "fix": f"name one of these, or add a table for it to {FILE} in the home folder",
                    },
                )
        return [seat for seat in self.seats if not names or seat.name in names]


def read_file(home: Path, kinds: set[str]) -> dict[str, Json]:
    """The operator's seats file, empty where there is none. ConfigError names the place at fault."""
    path = home / FILE
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read", {"path": str(path), "reason": str(exc)}) from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path} is not TOML", {"path": str(path), "reason": str(exc)}) from None
    for name in tables:
        if name not in kinds | {LOCAL_KIND}:
            raise ConfigError(
                f"{FILE} has a table {name!r} that no enabled profile owns",
                {
                    "path": f"{path}:{name}",
                    "expected": "one of " + ", ".join(sorted(kinds | {LOCAL_KIND})),
                    "fix": "correct the name, or add the profile to GRIDQ_PROFILES",
                },
            )
    return tables


def local_seat(tables: Mapping[str, Json], modules: tuple[str, ...]) -> Seat:
    """The built-in seat: stages with effects on the network or the machine, and the user's Python stages in
    `modules`.
    """
    try:
        local = LocalSeat.model_validate(tables.get(LOCAL_KIND, {}))
    except ValidationError as exc:
        field, reason = first_fault(exc)
        where = f"{LOCAL_KIND}.{field}" if field else LOCAL_KIND
        raise ConfigError(f"{FILE}: {where} is not usable", {"path": where, "reason": reason}) from None
    offer = SeatOffer(
        name=LOCAL_KIND, kind=LOCAL_KIND, capability={"modules": list(modules)}, concurrency=local.concurrency
    )
    return Seat(offer, (queue_names.LOCAL, *map(queue_names.module_queue, modules)))


def check_distinct(seats: list[Seat]) -> None:
    """ConfigError where two seats have one name, or share what they must not (a login, a URL, a device)."""
    names: dict[str, Seat] = {}
    owners: dict[str, Seat] = {}
    for seat in seats:
        if seat.name in names:
            raise ConfigError(
                f"Two seats are named {seat.name!r}",
                {"path": seat.name, "fix": f"rename one of them in {FILE}"},
            )
        names[seat.name] = seat
        exclusive = seat.offer.exclusive
        if exclusive is not None:
            if exclusive in owners:
                raise ConfigError(
                    f"The seats {owners[exclusive].name!r} and {seat.name!r} share {exclusive}",
                    {
                        "path": seat.name,
                        "expected": "one seat for each login, URL or device",
                        "fix": f"remove one from {FILE}",
                    },
                )
            owners[exclusive] = seat
