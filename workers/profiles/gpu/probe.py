"""Find the gpu seats of this machine: one for each device, with the models that fit it, and one for each
engine that already runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import ValidationError

from gridq.config.settings import settings
from gridq.errors import ConfigError, ModelFileError, first_fault, suggest_fix
from gridq.protocol.budget_syntax import SEAT_UNITS, BudgetError, check_distinct, parse_limit
from gridq.protocol.models import Json, Limit, ProbeReport, SeatOffer
from workers.model_apis.demand import list_llm_queues
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.capability import (
    GpuCapability,
    GpuConfig,
    GpuSeat,
    TooLarge,
    format_compute_cap,
)
from workers.profiles.gpu.devices import cpu, discovery
from workers.profiles.gpu.devices.device import Device
from workers.profiles.gpu.engines import selection
from workers.profiles.gpu.memory_classes import KIND, meets_compute
from workers.profiles.gpu.model_files.machine_models import GB, list_models
from workers.profiles.gpu.model_files.suggestions import suggest_pull
from workers.profiles.gpu.model_loader import ModelLoader, check_model, format_gb
from workers.profiles.gpu.model_process import make_child_environment
from workers.profiles.gpu.running_engines import engine_offers
from workers.profiles.gpu.running_engines.engine_table import parse_tables

ENGINE_SECONDS = 1.5


def probe(
    config: Mapping[str, Json] | Sequence[Json], environ: Mapping[str, str] = os.environ
) -> ProbeReport:
    """Return a seat for every device and every engine that already runs, and a sentence for each missing
    driver, engine, file or memory.

    Raises ConfigError if the `[gpu]` table or GRIDQ_ENGINE is wrong.
    """
    table = _parse(config)
    limits = _parse_budgets(table)
    engine_tables = parse_tables(table.engines)
    aside = ThreadPoolExecutor(1)
    looking = aside.submit(
        engine_offers.find_seats, engine_tables, table.price_per_hour, environ, settings().home
    )
    aside.shutdown(wait=False)
    engine, engine_note = selection.choose_engine(environ)
    concurrency = selection.choose_concurrency(table.concurrency, engine)
    found, missing = discovery.find_devices(table.gpus, table.cpu)
    missing += [_explain_no_memory(device, table) for device in found if not _get_limit(device, table)]
    found = [device for device in found if _get_limit(device, table)]
    models = list_models(table.models, settings().home)
    has_own = any(not model.is_last_resort for model in models)
    present, pullable = [], []
    for model in models:
        if model.is_reference and table.pulls:
            pullable.append(model)
        elif problem := _check_file(model, table.model_folders):
            if not (model.is_last_resort and has_own):  # who has a model does not need the demo's
                missing.append(problem)
        else:
            present.append(model)
    too_large: dict[str, list[TooLarge]] = {}
    seats: list[tuple[Device, list[Model]]] = []
    if engine is None:
        missing.append(engine_note)
    backends = _list_backends(engine) if any(device.backend != "cpu" for device in found) else None
    for device in found:
        usable: list[Model] = []
        if engine is not None:
            problem = _explain_unfit_device(device, table, engine, backends)
            if problem:
                missing.append(f"{device.device}: no models: {problem}")
            else:
                seat = _make_seat(device, table, engine, present, concurrency)
                usable, too_large[device.device], reasons = _choose_models(device, table, seat, pullable)
                missing += reasons
        seats.append((device, _prefer_others(usable)))
    missing += _explain_too_large(found, table, too_large)
    offers = [
        _make_offer(
            device,
            engine_note,
            _make_seat(device, table, engine, usable, concurrency),
            too_large.get(device.device, []),
            takes_protected=table.protected,
        )
        for device, usable in seats
    ]
    running, not_usable, not_lent = looking.result()
    if engine is not None and not running:
        missing += _suggest_model(seats, table)
    offers = [offer.model_copy(update={"limits": limits}) for offer in offers + running]
    return ProbeReport(found=offers, missing=missing + not_usable, not_lent=not_lent)


def _choose_models(
    device: Device, table: GpuConfig, seat: GpuSeat, pullable: Sequence[Model]
) -> tuple[list[Model], list[TooLarge], list[str]]:
    """Return the models that a device runs, of those of its seat and of those that may be pulled; those that
    it has too little memory for; and why it does not run others.
    """
    problems = {model.name: _explain_unfit_model(device, table, model) for model in seat.models}
    needs = _find_needs(seat, [model for model in seat.models if not problems[model.name]])
    usable = [model for model in seat.models if needs.get(model.name, seat.memory_mb + 1) <= seat.memory_mb]
    too_large = [
        TooLarge(name=model.name, queues=tuple(list_llm_queues([model])), need_mb=needs[model.name])
        for model in seat.models
        if model.name in needs and model not in usable
    ]
    usable += [
        model
        for model in pullable
        if (model.memory_mb or 0) <= seat.memory_mb and not _explain_unfit_model(device, table, model)
    ]
    return usable, too_large, [f"{device.device}: {why}" for why in problems.values() if why]


def _suggest_model(seats: Sequence[tuple[Device, list[Model]]], table: GpuConfig) -> list[str]:
    """Return the command that gets a model, if the machine has none that writes text but a last resort."""
    if any(model.any and not model.is_last_resort for _, models in seats for model in models):
        return []
    best = max(
        (device for device, _ in seats),
        key=lambda d: (d.backend != "cpu", _get_limit(d, table)),
        default=None,
    )
    command = "" if best is None else suggest_pull(_get_limit(best, table), is_cpu=best.backend == "cpu")
    return [f"No model of a useful size. One that fits {best.device}: {command}"] if best and command else []


def _prefer_others(models: list[Model]) -> list[Model]:
    """Return `models` with `any = false` for those of the last resort, if another of them is `any`."""
    if not any(model.any and not model.is_last_resort for model in models):
        return models
    return [model.model_copy(update={"any": False}) if model.is_last_resort else model for model in models]


def _explain_no_memory(device: Device, table: GpuConfig) -> str:
    return (
        f"{device.device}: not lent, as headroom_mb keeps all of its {device.memory_mb} MB free; "
        f"set headroom_mb of the gpu table below {min(device.memory_mb, table.headroom_mb)}, or gpus = false"
    )


def _explain_unfit_device(device: Device, table: GpuConfig, engine: str, backends: list[str] | None) -> str:
    """Return why a device runs no models at all, "" if it does."""
    if device.backend != "cpu" and backends is not None and device.backend not in backends:
        return f"the installed {engine} does not support {device.backend}"
    if device.backend == "cuda" and not meets_compute(table.min_compute, _format_compute(device)):
        has = _format_compute(device) or "not reported by its driver"
        return f"its compute capability is {has}, and min_compute of the gpu table is {table.min_compute}"
    return ""


def _explain_unfit_model(device: Device, table: GpuConfig, model: Model) -> str:
    """Return why a device does not run a model, "" if it does."""
    wanted = model.min_compute
    if wanted and device.backend == "cuda" and not meets_compute(wanted, _format_compute(device)):
        has = _format_compute(device) or "none that its driver reports"
        return f"{model.name} needs compute capability {wanted}, it has {has}"
    return ""


def _format_compute(device: Device) -> str | None:
    return None if device.compute_cap is None else format_compute_cap(device.compute_cap)


def _parse(config: Mapping[str, Json] | Sequence[Json]) -> GpuConfig:
    if not isinstance(config, Mapping):
        raise ConfigError(
            "The seats file has several gpu tables",
            {"path": "gpu", "expected": "one [gpu] table", "fix": "write [gpu] once"},
        )
    try:
        return GpuConfig.model_validate(dict(config))
    except ValidationError as exc:
        field, reason = first_fault(exc)
        is_unknown = exc.errors()[0]["type"] == "extra_forbidden"
        raise ConfigError(
            "The gpu table is not valid",
            {
                "path": f"gpu.{field}",
                "reason": reason,
                **({"expected": ", ".join(GpuConfig.model_fields)} if is_unknown else {}),
                **suggest_fix(exc, GpuConfig),
            },
        ) from None


def _parse_budgets(table: GpuConfig) -> tuple[Limit, ...]:
    """Return the limits of each seat of the table. Raises ConfigError."""
    limits: tuple[Limit, ...] = ()
    for number, each in enumerate(table.budgets):
        try:
            limits = check_distinct((*limits, parse_limit(each, SEAT_UNITS)))
        except BudgetError as exc:
            at = f"gpu.budgets.{number}" + (f".{exc.key}" if exc.key else "")
            raise ConfigError(
                "The gpu table is not valid",
                {"path": at, "reason": exc.message, "expected": exc.expected},
            ) from None
    return limits


def _check_file(model: Model, folders: Sequence[str]) -> str:
    """Return why the model's file cannot be used, else "". The first load verifies its checksum."""
    try:
        check_model(model, folders)
    except ModelFileError as error:
        return f"{error.message}: {error.reason + '; ' if error.reason else ''}{error.fix}"
    return ""


def _list_backends(engine: str | None) -> list[str] | None:
    """Return the backends of the engine, None if it does not answer in time.

    Asks in a separate process, because a driver may hang and an engine may allocate memory of the card.
    """
    if engine is None:
        return None
    try:
        result = subprocess.run(  # noqa: S603 - our own interpreter and module, no shell
            [sys.executable, "-m", "workers.profiles.gpu.engine_process", "--backends", engine],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ENGINE_SECONDS,
            check=True,
            env=make_child_environment({}),
        )
        return list(json.loads(result.stdout)["backends"])
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return None


def _find_needs(seat: GpuSeat, models: list[Model]) -> dict[str, int]:
    """Return the device memory that each model needs, as far as it is known without starting an engine."""
    loader = ModelLoader(seat)
    return {model.name: loader.plan(model).need.device_mb for model in models}


def _explain_too_large(
    found: Sequence[Device], table: GpuConfig, too_large: Mapping[str, Sequence[TooLarge]]
) -> list[str]:
    """Return a sentence for each model that fits no device of the machine: its need, and the best device."""
    devices = {device.device: device for device in found if device.device in too_large}
    sentences = []
    names = dict.fromkeys(each.name for models in too_large.values() for each in models)
    for name in names:
        needs = {
            key: each.need_mb for key, models in too_large.items() for each in models if each.name == name
        }
        if len(needs) < len(devices):
            continue  # another device holds it
        best = max(devices.values(), key=lambda device: _get_limit(device, table))
        sentences.append(
            f"{name} needs {format_gb(needs[best.device])}; best is {best.device} with "
            f"{min(best.free_mb, _get_limit(best, table)) / 1024:.1f} free of {format_gb(best.memory_mb)}, "
            f"{format_gb(_get_limit(best, table))} of it for models; lower its context, or gpu.concurrency"
        )
    return sentences


def _get_limit(device: Device, table: GpuConfig) -> int:
    usable = device.compute_usable_mb(table.headroom_mb)
    return usable if table.memory_mb is None else min(usable, table.memory_mb)


def _make_seat(
    device: Device, table: GpuConfig, engine: str | None, models: list[Model], concurrency: int
) -> GpuSeat:
    return GpuSeat(
        device=device.device,
        backend=device.backend,
        uuid=device.uuid,
        memory_mb=_get_limit(device, table),
        device_mb=device.compute_usable_mb(table.headroom_mb),
        headroom_mb=0 if device.backend == "cpu" else table.headroom_mb,
        concurrency=concurrency,
        threads=table.threads or cpu.count_spare_cores(),
        engine=engine,
        idle_unload=table.idle_unload,
        prompt_cache_mb=table.prompt_cache_mb,
        price_per_hour=table.price_per_hour,
        pull_bytes=int(table.pull_limit_gb * GB) if table.pulls else None,
        cache_bytes=None if table.cache_limit_gb is None else int(table.cache_limit_gb * GB),
        model_folders=table.model_folders,
        models=tuple(models),
    )


def _make_offer(
    device: Device,
    engine_note: str,
    seat: GpuSeat,
    too_large: Sequence[TooLarge],
    *,
    takes_protected: bool,
) -> SeatOffer:
    capability = GpuCapability(
        device=device.device,
        name=device.name,
        vendor=device.vendor,
        backend=device.backend,
        memory_mb=device.memory_mb,
        free_mb=device.free_mb,
        usable_mb=seat.memory_mb,
        compute_cap=_format_compute(device),
        models=tuple(model.make_offer() for model in seat.models),
        too_large=tuple(too_large),
        engine=seat.engine,
        modules=settings().stages,
        protected=takes_protected,
    )
    offer = SeatOffer(
        name=device.device,
        kind=KIND,
        capability=capability.model_dump(mode="json"),
        concurrency=seat.concurrency,
        exclusive=f"device {device.uuid or device.device}",
        config=seat.model_dump(mode="json"),
        note=f"{device.name}, {device.memory_mb} MB; {engine_note}; models: "
        + (", ".join(model.name for model in seat.models) or "none"),
    )
    return offer.model_copy(update={"stamp": _make_stamp(offer)})


def _make_stamp(offer: SeatOffer) -> str:
    """Return a digest of the offer without the memory that is free now: it changes all the time, and a reload
    must not restart the seat for it, which would unload its models.
    """
    lasting = {key: value for key, value in offer.capability.items() if key != "free_mb"}
    text = offer.model_copy(update={"capability": lasting}).model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()[:16]
