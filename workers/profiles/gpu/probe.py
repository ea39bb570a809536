"""The gpu seats of this machine: one a device, with the models that fit it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

import workers
from gridq.errors import ConfigError, ModelFileError, first_fault
from gridq.protocol.models import Json, ProbeReport, SeatOffer
from workers.model_apis.models import Model, catalogue
from workers.profiles.gpu import devices, engines
from workers.profiles.gpu.capability import GpuCapability, GpuConfig, GpuSeat
from workers.profiles.gpu.devices import Device
from workers.profiles.gpu.matching import KIND

ENGINE_SECONDS = 1.5


def probe(
    config: Mapping[str, Json] | Sequence[Json], environ: Mapping[str, str] = os.environ
) -> ProbeReport:
    """Every device as a seat, and in words what was not found: drivers, engines, models' files, room for
    them.

    ConfigError: the `[gpu]` table or GRIDQ_ENGINE is wrong.
    """
    table = _parse(config)
    engine, why = engines.choose(environ)
    concurrency = _concurrency(table.concurrency, engine)
    found, missing = devices.found(table.gpus, table.cpu)
    models = catalogue(table.models, "gpu.models")
    present = []
    for model in models:
        problem = _absent(model)
        if problem:
            missing.append(problem)
        else:
            present.append(model)
    if engine is None:
        missing.append(why)
    backends = _backends(engine, environ) if any(device.backend != "cpu" for device in found) else None
    offers = []
    for device in found:
        usable: list[Model] = []
        if engine is not None:
            if device.backend != "cpu" and backends is not None and device.backend not in backends:
                missing.append(
                    f"{device.device}: the installed {engine} cannot use {device.backend}: no models on it"
                )
            else:
                usable = [model for model in present if model.memory_mb <= device.usable_mb]
                missing += [
                    f"{device.device}: {model.name} needs {model.memory_mb} MB, it has {device.usable_mb} MB"
                    for model in present
                    if model not in usable
                ]
        offers.append(_offer(device, table, engine, why, usable, concurrency=concurrency))
    return ProbeReport(found=offers, missing=missing)


def _parse(config: Mapping[str, Json] | Sequence[Json]) -> GpuConfig:
    if not isinstance(config, Mapping):
        raise ConfigError("gpu is one table", {"path": "gpu", "expected": "[gpu]", "fix": "write [gpu] once"})
    try:
        return GpuConfig.model_validate(dict(config))
    except ValidationError as exc:
        field, reason = first_fault(exc)
        raise ConfigError(
            "The gpu table is not usable",
            {
                "path": f"gpu.{field}",
                "reason": reason,
                "expected": "cpu, gpus, slots, threads, price_per_hour, models",
            },
        ) from None


def _concurrency(asked: int | None, engine: str | None) -> int:
    """How many stages a device runs at once. ConfigError: more are asked for than the engine serves."""
    if engine is None:
        return 1
    usual = engines.make(engine).default_concurrency
    if asked is not None and asked > usual == 1:
        raise ConfigError(
            f"The engine {engine} serves one request at a time",
            {
                "path": "gpu.concurrency",
                "expected": "1",
                "fix": "leave slots out or set GRIDQ_ENGINE=xllamacpp",
            },
        )
    return asked or usual


def _absent(model: Model) -> str:
    """Why the model's file cannot be used, as far as a look tells; its checksum is compared before the first
    load.
    """
    try:
        path = model.path()
    except ModelFileError as error:
        return f"{error.message}: {error.fix}"
    if not path.is_file():
        return f"The model {model.name!r} has no file at {path}"
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            return f"The model {model.name!r}: {path} is no GGUF file; fetch it again"
    return ""


def _backends(engine: str | None, environ: Mapping[str, str]) -> list[str] | None:
    """What the engine can compute on, asked in a process of its own; None where it does not say in time.

    A driver may hang and an engine may take memory of the card, neither of which must happen in the worker.
    """
    if engine is None:
        return None
    root = str(Path(workers.__file__).resolve().parents[1])
    try:
        told = subprocess.run(  # noqa: S603 - our own interpreter and module, no shell
            [sys.executable, "-m", "workers.profiles.gpu.engine_process", "--backends", engine],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ENGINE_SECONDS,
            check=True,
            env={**environ, "PYTHONPATH": root},
        )
        return list(json.loads(told.stdout)["backends"])
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return None


def _offer(
    device: Device, table: GpuConfig, engine: str | None, why: str, models: list[Model], *, concurrency: int
) -> SeatOffer:
    capability = GpuCapability(
        device=device.device,
        name=device.name,
        vendor=device.vendor,
        backend=device.backend,
        memory_mb=device.memory_mb,
        free_mb=device.free_mb,
        compute_cap=device.compute_cap,
        models=tuple(model.offer() for model in models),
        engine=engine,
    )
    seat = GpuSeat(
        device=device.device,
        backend=device.backend,
        uuid=device.uuid,
        memory_mb=device.usable_mb,
        concurrency=concurrency,
        threads=table.threads or devices.spare_cores(),
        engine=engine,
        price_per_hour=table.price_per_hour,
        models=tuple(models),
    )
    return SeatOffer(
        name=device.device,
        kind=KIND,
        capability=capability.model_dump(mode="json"),
        concurrency=concurrency,
        exclusive=f"device {device.uuid or device.device}",
        config=seat.model_dump(mode="json"),
        note=f"{device.name}, {device.memory_mb} MB; {why}; models: "
        + (", ".join(model.name for model in models) or "none"),
    )
