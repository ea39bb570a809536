"""The models that this machine can load: those of the seats file, those that were pulled, and gridq's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gridq.errors import ConfigError, ModelReferenceInvalid
from gridq.protocol import queue_names
from gridq.protocol.models import Json
from workers.model_apis.model_catalogue import Model, load_catalogue
from workers.profiles.gpu.model_files.local_models import LocalModel, LocalModels
from workers.profiles.gpu.model_files.references import (
    CatalogueReference,
    Reference,
    parse_reference,
)

GB = 1_000_000_000


def list_models(tables: Sequence[Json], home: Path) -> list[Model]:
    """Return the catalogue of this machine. `tables`: those of `[[gpu.models]]`.

    A model whose `file` is a reference has the path of its file instead, if it was pulled. Raises ConfigError
    naming the table and the field.
    """
    pulled = LocalModels(home).read()
    found = load_catalogue(tables, "gpu.models", [each.make_table() for each in pulled])
    return [_find_files(model, pulled) for model in found]


def find_files(model: Model, home: Path) -> Model:
    """Return `model` with the path of its file if its `file` is a reference that was pulled."""
    return _find_files(model, LocalModels(home).read()) if model.is_reference else model


def _find_files(model: Model, pulled: Sequence[LocalModel]) -> Model:
    if not model.is_reference:
        return model
    try:
        reference = str(parse_reference(model.file))
    except ModelReferenceInvalid as exc:
        details = {**exc.details, "path": f"gpu.models.{model.name}.file"}
        raise ConfigError(f"The file of the model {model.name!r} is not valid", details) from None
    for each in pulled:
        if each.reference == reference:
            first, *parts = each.files
            files = {file.path: file.sha256 for file in parts}
            digest = model.sha256 or first.sha256
            return model.model_copy(update={"file": first.path, "sha256": digest, "parts": files})
    return model


def find_reference(text: str, tables: Sequence[Json], home: Path) -> tuple[Reference, Model | None]:
    """Return what `text` refers to, and the model of the catalogue that it names, if it is such a name.

    A name stands for the reference of its table, or for that by which it was pulled before. Raises
    ModelReferenceInvalid.
    """
    reference = parse_reference(text)
    if not isinstance(reference, CatalogueReference):
        return reference, None
    slug = queue_names.make_slug(reference.name)
    for model in load_catalogue(tables, "gpu.models"):
        if queue_names.make_slug(model.name) == slug and model.package is None:
            return parse_reference(model.file), model
    known = LocalModels(home).find(reference.name)
    return (parse_reference(known.reference), None) if known else (reference, None)


def read_limit(table: Mapping[str, Json], name: str) -> int | None:
    """Return a limit of the `[gpu]` table, which is in GB of 1,000 MB, in bytes; None if there is none."""
    value = table.get(name)
    return int(value * GB) if isinstance(value, int | float) and not isinstance(value, bool) else None
