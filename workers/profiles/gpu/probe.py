"""Find the gpu seats of this machine: one for each device, with the models that fit it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

import workers
from gridq.errors import ConfigError, ModelFileError, first_fault, suggest_fix
from gridq.protocol.models import Json, ProbeReport, SeatOffer
from workers.model_apis.model_catalogue import Model, load_catalogue
from workers.profiles.gpu import devices
from workers.profiles.gpu.capability import GpuCapability, GpuConfig, GpuSeat
from workers.profiles.gpu.devices import Device
from workers.profiles.gpu.engines import selection
from workers.profiles.gpu.memory_classes import KIND

ENGINE_SECONDS = 1.5


def probe(
    config: Mapping[str, Json] | Sequence[Json], environ: Mapping[str, str] = os.environ
) -> ProbeReport:
    """Return a seat for every device, and a sentence for each missing driver, engine, file or memory.

    Raises ConfigError if the `[gpu]` table or GRIDQ_ENGINE is wrong.
    """
    table = _parse(config)
    engine, engine_note = selection.choose_engine(environ)
    concurrency = _choose_concurrency(table.concurrency, engine)
    found, missing = devices.find_devices(table.gpus, table.cpu)
    models = load_catalogue(table.models, "gpu.models")
    present = []
    for model in models:
        problem = _check_file(model)
        if problem:
            missing.append(problem)
        else:
            present.append(model)
    if engine is None:
        missing.append(engine_note)
    backends = _list_backends(engine, environ) if any(device.backend != "cpu" for device in found) else None
    offers = []
    for device in found:
        usable: list[Model] = []
        if engine is not None:
            if device.backend != "cpu" and backends is not None and device.backend not in backends:
                missing.append(
                    f"{device.device}: no models: the installed {engine} does not support {device.backend}"
                )
            else:
                usable = [model for model in present if model.memory_mb <= device.usable_mb]
                missing += [
                    f"{device.device}: {model.name} needs {model.memory_mb} MB, it has {device.usable_mb} MB"
                    for model in present
                    if model not in usable
                ]
        offers.append(_make_offer(device, table, engine, engine_note, usable, concurrency=concurrency))
    return ProbeReport(found=offers, missing=missing)


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
        raise ConfigError(
            "The gpu table is not valid",
            {
                "path": f"gpu.{field}",
                "reason": reason,
                "expected": "cpu, gpus, concurrency, threads, price_per_hour, models",
                **suggest_fix(exc, GpuConfig),
            },
        ) from None


def _choose_concurrency(requested: int | None, engine: str | None) -> int:
    """Return how many stages a device runs at once. Raises ConfigError if the engine cannot run as many."""
    if engine is None:
        return 1
    default = selection.create_engine(engine).default_concurrency
    if requested is not None and requested > default == 1:
        raise ConfigError(
            f"The engine {engine} runs one request at a time",
            {
                "path": "gpu.concurrency",
                "expected": "1",
                "fix": "remove concurrency, or set GRIDQ_ENGINE=xllamacpp",
            },
        )
    return requested or default


def _check_file(model: Model) -> str:
    """Return why the model's file cannot be used, else "". The first load verifies its checksum."""
    try:
        path = model.locate_file()
    except ModelFileError as error:
        return f"{error.message}: {error.fix}"
    if not path.is_file():
        return f"The file of the model {model.name!r} does not exist: {path}"
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            return f"The file of the model {model.name!r} is not a GGUF file: {path}; download it again"
    return ""


def _list_backends(engine: str | None, environ: Mapping[str, str]) -> list[str] | None:
    """Return the backends of the engine, None if it does not answer in time.

    Asks in a separate process, because a driver may hang and an engine may allocate memory of the card.
    """
    if engine is None:
        return None
    root = str(Path(workers.__file__).resolve().parents[1])
    try:
        result = subprocess.run(  # noqa: S603 - our own interpreter and module, no shell
            [sys.executable, "-m", "workers.profiles.gpu.engine_process", "--backends", engine],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ENGINE_SECONDS,
            check=True,
            env={**environ, "PYTHONPATH": root},
        )
        return list(json.loads(result.stdout)["backends"])
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return None


def _make_offer(
    device: Device,
    table: GpuConfig,
    engine: str | None,
    engine_note: str,
    models: list[Model],
    *,
    concurrency: int,
) -> SeatOffer:
    capability = GpuCapability(
        device=device.device,
        name=device.name,
        vendor=device.vendor,
        backend=device.backend,
        memory_mb=device.memory_mb,
        free_mb=device.free_mb,
        compute_cap=device.compute_cap,
        models=tuple(model.make_offer() for model in models),
        engine=engine,
    )
    seat = GpuSeat(
        device=device.device,
        backend=device.backend,
        uuid=device.uuid,
        memory_mb=device.usable_mb,
        concurrency=concurrency,
        threads=table.threads or devices.count_spare_cores(),
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
        note=f"{device.name}, {device.memory_mb} MB; {engine_note}; models: "
        + (", ".join(model.name for model in models) or "none"),
    )
