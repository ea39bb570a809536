"""The seats of running engines: one for each, with the models that it has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gridq.protocol import queue_names
from gridq.protocol.models import Json, SeatOffer
from workers.model_apis.model_catalogue import ModelOffer
from workers.profiles.gpu.capability import SERVER, GpuCapability
from workers.profiles.gpu.memory_classes import KIND
from workers.profiles.gpu.running_engines.engine import EngineModel, EngineState, RunningEngine
from workers.profiles.gpu.running_engines.engine_table import EngineTable, NamedModel, read_key, read_port
from workers.profiles.gpu.running_engines.finding import (
    USUAL_PORTS,
    FoundEngine,
    look_at_all,
)
from workers.profiles.gpu.running_engines.handoff_files import read_handoffs

SKIP_VARIABLE = "GRIDQ_SKIP_ENGINES"
FALSE_VALUES = frozenset({"", "0", "false", "no", "off"})
MAX_SLOTS = 64
"""Slots of a seat, if the engine says that it runs more requests at once and its owner does not."""

MAX_NAMES = 6
"""Models that a note names before it only counts them."""


class EngineSeat(BaseModel):
    """The configuration of an engine's seat.

    `models` are those of its owner's table or, if that names none, those that were found. `found` are the
    names of all of the latter, before the terms of `lend` select some. `lends_only_named`: the table names
    models. Models that come later are lent too, unless the owner chose some in either way.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    kind: str = ""
    concurrency: int = 1
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None
    memory_mb: int | None = None
    models: tuple[NamedModel, ...] = ()
    found: tuple[str, ...] = ()
    lends_only_named: bool = False
    is_named: bool = False
    key_env: str | None = None
    key_file: str | None = None
    silence: float = 300.0
    price_per_hour: float | None = None

    def read_key(self) -> str | None:
        """Return the engine's key as it is now; None if it has none, or if none can be read."""
        return read_key(self.key_env, self.key_file)

    @property
    def is_limited(self) -> bool:
        """True if the owner lends only some of the engine's models."""
        return self.lends_only_named or {model.name for model in self.models} != set(self.found)


def is_engine_seat(config: Mapping[str, Json]) -> bool:
    """Return whether the configuration of a gpu seat is that of an engine, not of a device."""
    return "url" in config


def find_seats(
    tables: Sequence[EngineTable],
    price_per_hour: float | None,
    environ: Mapping[str, str],
    home: Path,
) -> tuple[list[SeatOffer], list[str], list[str]]:
    """Return a seat for each engine that runs here, a sentence for each one that cannot be used now, and a
    note for what engines have and gridq does not lend. `home` has the handoff files.
    """
    handoffs, broken = read_handoffs(home, tables)
    announcements = {handoff.table.root: handoff.announcement for handoff in handoffs}
    tables = [*tables, *(handoff.table for handoff in handoffs)]
    is_skipped = is_search_off(environ)
    launched = [table for table in tables if table.command and table.lend]
    named = [table for table in tables if table.lend and table.url]
    left_out = {read_port(table.root) for table in tables if table.url and not table.lend}
    ports = [] if is_skipped else [port for port in USUAL_PORTS if port not in left_out]
    declared, unnamed = look_at_all(
        [(table.root, partial(read_key, table.key_env, table.key_file, environ)) for table in named], ports
    )
    offers: list[SeatOffer] = []
    missing = broken
    not_lent: list[str] = []
    for table, found in zip(named, declared, strict=True):
        name = table.name or _choose_name(found)
        if found.fault:
            missing.append(f"{name}: the engine at {table.root} cannot be used: {found.fault}")
        offer = _make_offer(name, table, found, price_per_hour, is_named=True)
        if not found.fault and not offer.capability["models"]:
            missing.append(
                f"{name}: the engine at {table.root} {explain_no_models(table.models, found.state)}"
            )
        if problem := _explain_no_key(table, environ):
            missing.append(f"{name}: {problem}")
        offers.append(offer.model_copy(update={"announcement": announcements.get(table.root, "")}))
        not_lent += [f"{name}: {reason}" for reason in found.state.skipped]
    for table in launched:
        found = FoundEngine("", fault="its seat's worker starts it")
        offers.append(_make_offer(str(table.name), table, found, price_per_hour, is_named=True))
    for found in unnamed:
        name = _choose_name(found)
        if found.fault or not found.state.models:
            reason = found.fault or "it has no models yet"
            missing.append(f"{name}: found at {found.url}, but not lent: {reason}")
        elif all(name != offer.name for offer in offers):
            table = EngineTable(url=found.url)
            offers.append(_make_offer(name, table, found, price_per_hour, is_named=False))
            not_lent += [f"{name}: {reason}" for reason in found.state.skipped]
    if is_skipped:
        missing.append(f"Engines that already run were not looked for: {SKIP_VARIABLE} is set")
    return offers, missing, not_lent


def explain_no_models(named: Sequence[NamedModel], state: EngineState) -> str:
    """Return why an engine that answers lends no model. `named`: those that its owner chose, empty: all."""
    if not named or not state.models:
        return "has no model to lend"
    wanted, has = ([each.name for each in models] for models in (named, state.models))
    return f"has none of the models that its owner lends ({_join(wanted)}); it has {_join(has)}"


def _explain_no_key(table: EngineTable, environ: Mapping[str, str]) -> str:
    """Return what is wrong with the place of an engine's key, "" if it has one or needs none."""
    if read_key(table.key_env, table.key_file, environ) is not None:
        return ""
    if table.key_env is not None:
        return f"the variable {table.key_env} of its key_env is not set in this environment"
    return f"its key_file {table.key_file} cannot be read, or is empty" if table.key_file is not None else ""


def is_search_off(environ: Mapping[str, str]) -> bool:
    """Return whether engines that no table names are not looked for."""
    return environ.get(SKIP_VARIABLE, "").strip().lower() not in FALSE_VALUES


def _choose_name(found: FoundEngine) -> str:
    """Return the name of an engine's seat: its kind, with the port if that is not its usual one."""
    port = read_port(found.url)
    if found.engine is None:
        return f"engine-{port}"
    return found.engine.kind if port in found.engine.ports[:1] else f"{found.engine.kind}-{port}"


def _make_offer(
    name: str, table: EngineTable, found: FoundEngine, price_per_hour: float | None, *, is_named: bool
) -> SeatOffer:
    slots = table.concurrency or choose_slots(found.engine, found.state)
    chosen = table.models or tuple(
        NamedModel(name=model.name, families=model.aliases) for model in found.state.models
    )
    seat = EngineSeat(
        url=table.root,
        kind=found.engine.kind if found.engine else "",
        concurrency=slots,
        models=chosen,
        found=tuple(model.name for model in found.state.models),
        lends_only_named=bool(table.models),
        command=table.command,
        env=table.env,
        pass_env=table.pass_env,
        devices=table.devices,
        memory_mb=table.memory_mb,
        is_named=is_named,
        key_env=table.key_env,
        key_file=table.key_file,
        silence=table.silence,
        price_per_hour=price_per_hour,
    )
    capability = make_capability(name, seat, found.engine, found.state)
    return SeatOffer(
        name=name,
        kind=KIND,
        capability=capability.model_dump(mode="json"),
        concurrency=slots,
        exclusive=f"engine {urlsplit(table.root).netloc}" if table.url else None,
        config=seat.model_dump(mode="json"),
        note=_describe(table, found, capability),
        stamp=hashlib.sha256(f"{table.model_dump_json()} {price_per_hour}".encode()).hexdigest()[:16],
        notice="" if is_named else _make_notice(name, table.root, capability),
    )


def choose_slots(engine: RunningEngine | None, state: EngineState) -> int:
    """Return how many requests an engine runs at once, as it says, else its kind's default."""
    if engine is None:
        return 1
    return min(state.slots or engine.default_slots, MAX_SLOTS)


def make_capability(
    name: str, seat: EngineSeat, engine: RunningEngine | None, state: EngineState
) -> GpuCapability:
    """Return what the seat of an engine offers in `state`: those of its models that its owner lends."""
    title = engine.title if engine else "An engine"
    return GpuCapability(
        device=name,
        name=" ".join(filter(None, (title, state.version, "at", urlsplit(seat.url).netloc))),
        vendor=engine.kind if engine else "",
        backend=SERVER,
        memory_mb=0,
        models=select_models(seat, state.models),
        engine=engine.kind if engine else None,
    )


def select_models(seat: EngineSeat, models: Sequence[EngineModel]) -> tuple[ModelOffer, ...]:
    """Return the models that the seat lends, in the owner's order, else in the engine's."""
    by_name = {alias: model for model in reversed(models) for alias in model.aliases}
    by_name |= {model.name: model for model in models}
    offers: dict[str, ModelOffer] = {}
    chosen = {each.name: each for each in seat.models}
    wanted = list(seat.models) if seat.is_limited else []
    if not seat.is_limited:
        wanted = [chosen.get(model.name, NamedModel(name=model.name)) for model in models]
    for each in wanted:
        model = by_name.get(each.name)
        offer = _make_model_offer(each, model) if model is not None else None
        if offer is not None:
            offers.setdefault(queue_names.make_slug(offer.name), offer)
    return tuple(offers.values())


def _make_model_offer(named: NamedModel, model: EngineModel) -> ModelOffer | None:
    """Return the offer of a model; None if its name is one that no model may have."""
    try:
        return ModelOffer(
            name=model.name,
            families=tuple(dict.fromkeys((*named.families, *model.aliases))),
            context=min(filter(None, (named.context, model.context)), default=None),
            embeddings=model.embeddings if named.embeddings is None else named.embeddings,
            any=model.any if named.any is None else named.any,
        )
    except ValidationError:
        return None


def _describe(table: EngineTable, found: FoundEngine, capability: GpuCapability) -> str:
    """Return what an engine lends, and what of that is loaded, in one line."""
    if table.command:
        return f"{table.command[0]}, which the seat's worker starts"
    if found.engine is None:
        return f"{table.root}: no models until it answers"
    lent = [model.name for model in capability.models]
    loaded = [name for name in found.state.loaded if name in lent]
    models = f"models: {_join(lent) or 'none'}; loaded: {', '.join(loaded) or 'none'}"
    return f"{capability.name}, already running; {models}"


def _join(names: Sequence[str]) -> str:
    """Return the first names in words, and how many more there are."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _make_notice(name: str, url: str, capability: GpuCapability) -> str:
    """Return what the owner of an engine without a table is told: it is lent, and how to leave it out."""
    count = len(capability.models)
    models = "its model" if count == 1 else f"its {count} models"
    return (
        f"{name}: {capability.name} already runs on this machine; the grid may use {models}. "
        f'To leave it out, add to seats.toml, in three lines: [[gpu.engines]], url = "{url}", lend = false'
    )
