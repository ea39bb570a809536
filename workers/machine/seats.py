"""The seats of this machine: those that the profiles find, and the built-in `local` seat.

`<home>/seats.toml` may hold a table for each kind (`[gpu]`, `[[llm]]`, …), which that profile's probe reads,
and `[local]` with `concurrency` for the built-in seat.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gridq.config.settings import Settings
from gridq.errors import ConfigError, first_fault, suggest_fix
from gridq.profiles import profile
from gridq.profiles.profile import Profile
from gridq.protocol import queue_names
from gridq.protocol.models import Json, SeatOffer
from workers.owner.lend import Terms

FILE = "seats.toml"
LOCAL_KIND = "local"


class LocalTable(BaseModel):
    """The `[local]` table of the seats file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int = Field(4, ge=1, le=512)


@dataclass(frozen=True, slots=True)
class Seat:
    """One seat of this machine, ready to be served.

    `profile` None: the built-in seat. `offer` is what the owner lends; `whole_budget` is the seat's whole
    budget of money in micro-dollars, of which the offer has a share.
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
    """The seats of a machine. `missing`: what was not found, and why. `not_lent`: what was found and is not
    lent.
    """

    seats: list[Seat] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    not_lent: list[str] = field(default_factory=list)

    def select(self, names: Sequence[str], path: str = "--seat") -> list[Seat]:
        """Return the seats called `names`; without names all. ConfigError at `path`: there is no
        such seat.
        """
        known = {seat.name for seat in self.seats}
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"This machine has no seat {name!r}",
                    {
                        "path": path,
                        "expected": "one of " + ", ".join(seat.name for seat in self.seats),
                        "reason": "; ".join(self.missing) or "nothing else was found",
                        "fix": f"use one of these, or add the seat to {FILE} in the home folder",
                    },
                )
        return [seat for seat in self.seats if not names or seat.name in names]


def read_seats_file(home: Path, kinds: set[str]) -> dict[str, Json]:
    """Read the seats file; empty where there is none. `kinds`: those of the enabled profiles.

    ConfigError: it cannot be read, or has a table of another kind.
    """
    path = home / FILE
    tables = _read_tables(path)
    for name in tables:
        if name not in kinds | {LOCAL_KIND}:
            raise ConfigError(
                f"{FILE} has a table {name!r}, which belongs to no enabled profile",
                {
                    "path": f"{path}:{name}",
                    "expected": "one of " + ", ".join(sorted(kinds | {LOCAL_KIND})),
                    "fix": _suggest_table(name, kinds | {LOCAL_KIND}),
                },
            )
    return tables


def read_gpu_table(config: Settings) -> dict[str, Json]:
    """Return the `[gpu]` table of the seats file, empty if there is none. Raises ConfigError."""
    table = _read_tables(config.home / FILE).get("gpu", {})
    return table if isinstance(table, dict) else {}


def _read_tables(path: Path) -> dict[str, Json]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read", {"path": str(path), "reason": str(exc)}) from None
    except tomllib.TOMLDecodeError as exc:
        is_single = re.search(r"^\s*\[llm\]", path.read_text("utf-8"), re.MULTILINE)
        fix = {"fix": "write [[llm]], with two brackets, for each seat"} if is_single else {}
        raise ConfigError(
            f"{path} is not valid TOML", {"path": str(path), "reason": str(exc), **fix}
        ) from None


def _suggest_table(name: str, kinds: set[str]) -> str:
    """Return what may help if no enabled profile reads the table `name`."""
    near = difflib.get_close_matches(name.lower(), sorted(kinds), 1)
    if near:
        return f"use {near[0]!r}"
    if name in profile.list_installed():
        return f"add {name!r} to GRIDQ_PROFILES, which is {','.join(sorted(kinds - {LOCAL_KIND}))}"
    return f"install the package that has the profile {name!r}, and add it to GRIDQ_PROFILES"


def make_local_seat(tables: Mapping[str, Json], modules: tuple[str, ...]) -> Seat:
    """Return the built-in seat, for built-in stages with effects and the user's Python stages in `modules`.

    ConfigError: the `[local]` table is invalid.
    """
    try:
        local = LocalTable.model_validate(tables.get(LOCAL_KIND, {}))
    except ValidationError as exc:
        field, reason = first_fault(exc)
        where = f"{LOCAL_KIND}.{field}" if field else LOCAL_KIND
        is_list = isinstance(tables.get(LOCAL_KIND), list)
        fix = {"fix": f"write [{LOCAL_KIND}], once"} if is_list else suggest_fix(exc, LocalTable)
        raise ConfigError(f"{FILE}: {where} is invalid", {"path": where, "reason": reason, **fix}) from None
    offer = SeatOffer(
        name=LOCAL_KIND, kind=LOCAL_KIND, capability={"modules": list(modules)}, concurrency=local.concurrency
    )
    return Seat(offer, (queue_names.LOCAL, *map(queue_names.make_module_queue, modules)))


def check_distinct(seats: list[Seat]) -> None:
    """Raise ConfigError if two seats have one name, or share a login, a URL or a device."""
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
                        "expected": "one seat per login, URL or device",
                        "fix": f"remove one of them from {FILE}",
                    },
                )
            owners[exclusive] = seat
