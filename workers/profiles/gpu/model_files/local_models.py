"""The models of this machine that were pulled or registered by name, in `<home>/models.json`.

A model is listed only once all its files are here and verified. The gpu profile's probe reads the list.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gridq.config.home import make_folder_error
from gridq.config.locked_json import read_json, update_json
from gridq.errors import ModelInUse, ModelNotFound
from gridq.protocol import queue_names
from gridq.protocol.models import Json
from workers.profiles.gpu.model_files import hub
from workers.profiles.gpu.model_files.file_use import is_in_use
from workers.profiles.gpu.model_files.mirror_protocol import Access
from workers.profiles.gpu.model_files.references import HubReference

FILE = "models.json"
DOWNLOADS = "models"
"""The folder in the home folder for files of `https:` references; those of the hub are in its own cache."""

DEFAULT_CONTEXT = 8192


class LocalFile(BaseModel):
    """One file of a model. `size` in bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    size: int
    sha256: str


class LocalModel(BaseModel):
    """A model of this machine.

    `trained_context` is what the file states; `context` what a request gets. `is_owned`: gridq downloaded the
    files, and may remove them. `access`: who may read its repository. Times are in seconds since 1970.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    reference: str
    commit: str = ""
    quantization: str = ""
    access: Access = ""
    files: tuple[LocalFile, ...] = Field(min_length=1)
    architecture: str = ""
    trained_context: int | None = None
    context: int = DEFAULT_CONTEXT
    families: tuple[str, ...] = ()
    embeddings: bool | None = None
    any: bool | None = None
    is_owned: bool = True
    pulled_at: float
    used_at: float

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def path(self) -> Path:
        return Path(self.files[0].path)

    def make_table(self) -> dict[str, Json]:
        """Return the model as a table of the catalogue."""
        table: dict[str, Json] = {
            "name": self.name,
            "file": self.files[0].path,
            "sha256": self.files[0].sha256,
            "context": self.context,
            "families": list(self.families),
        }
        parts = {file.path: file.sha256 for file in self.files[1:]}
        stated = {"embeddings": self.embeddings, "any": self.any, "parts": parts or None}
        return table | {name: value for name, value in stated.items() if value is not None}


class LocalModels:
    """The list of one home folder. Processes may share it."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def read(self) -> list[LocalModel]:
        """Return the models whose files are here, by name. An entry that cannot be read is skipped."""
        return _parse(read_json(self._home / FILE))

    def find(self, name: str) -> LocalModel | None:
        """Return the model called `name`, or that the reference `name` was pulled by."""
        slug = queue_names.make_slug(name)
        return next(
            (
                each
                for each in self.read()
                if queue_names.make_slug(each.name) == slug or each.reference == name
            ),
            None,
        )

    def get(self, name: str) -> LocalModel:
        """Return the model called `name`. Raises ModelNotFound."""
        found = self.find(name)
        if found is None:
            names = ", ".join(each.name for each in self.read())
            raise ModelNotFound(
                f"This machine has no model {name!r}",
                {
                    "path": name,
                    "expected": f"one of {names}" if names else "a model that was pulled",
                    "fix": "gridq models list; or gridq models pull hf:org/repo",
                },
            )
        return found

    def add(self, model: LocalModel) -> None:
        """Add a model, in place of one of the same name."""
        with self._change() as models:
            slug = queue_names.make_slug(model.name)
            models[:] = [each for each in models if queue_names.make_slug(each.name) != slug] + [model]

    def note_use(self, name: str) -> None:
        """Note that the model is loaded now, if it is one of the list."""
        if self.find(name) is None:
            return
        with self._change() as models:
            models[:] = [
                each.model_copy(update={"used_at": time.time()}) if each.name == name else each
                for each in models
            ]

    def remove(self, name: str) -> int:
        """Remove a model and the files that gridq downloaded for it. Return the bytes that this freed.

        Raises ModelNotFound, and ModelInUse if it is loaded.
        """
        model = self.get(name)
        with self._change() as models:
            others = {file.path for each in models if each.name != model.name for file in each.files}
            own = (
                [Path(file.path) for file in model.files if file.path not in others] if model.is_owned else []
            )
            if any(is_in_use(path) for path in own):
                raise ModelInUse(
                    f"The model {model.name!r} is loaded",
                    {
                        "path": model.name,
                        "fix": f"unload it first: gridq unload SEAT {model.name} (the seat: gridq gpus)",
                    },
                )
            models[:] = [each for each in models if each.name != model.name]
        freed = 0
        for path in own:
            if path.exists():
                freed += path.stat().st_size
                hub.remove_file(path)
        remove_empty_folders(self._home / DOWNLOADS)
        return freed

    def make_room(self, needed: int, limit: int) -> list[str]:
        """Remove the models that were unused longest until `needed` more bytes are within `limit`. Return
        their names. A model that is loaded stays; so the limit may be passed.
        """
        removed = []
        owned = sorted((each for each in self.read() if each.is_owned), key=lambda model: model.used_at)
        total = sum(each.size for each in owned)
        for model in owned:
            if total + needed <= limit:
                break
            try:
                self.remove(model.name)
            except (ModelInUse, ModelNotFound):
                continue
            removed.append(model.name)
            total -= model.size
        return removed

    @contextmanager
    def _change(self) -> Iterator[list[LocalModel]]:
        """Lock the list, and write it after the block. Raises ConfigError if the folder cannot be written."""
        try:
            with update_json(self._home / FILE) as stored:
                models = _parse(stored)
                before = list(models)
                yield models
                if models != before:
                    stored.clear()
                    if models:
                        stored["models"] = [each.model_dump() for each in models]
        except OSError as exc:
            raise make_folder_error(self._home, exc) from None


def _parse(stored: dict[str, Json]) -> list[LocalModel]:
    """Return the models of the stored list, by name, without those that cannot be read."""
    entries = stored.get("models")
    found = []
    for entry in entries if isinstance(entries, list) else ():
        with suppress(ValidationError):
            found.append(LocalModel.model_validate(entry))
    return sorted(found, key=lambda model: model.name)


def remove_empty_folders(folder: Path) -> None:
    """Remove the empty folders in `folder`, and it if it is empty then."""
    for each in (*folder.glob("*/"), folder):
        with suppress(OSError):  # it is not empty
            each.rmdir()


def make_name(reference: HubReference | str) -> str:
    """Return the name that a model gets if none is given: `hf:Qwen/Qwen3-8B-GGUF` becomes `qwen3-8b`."""
    text = reference.repo if isinstance(reference, HubReference) else reference
    text = text.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    text = re.sub(r"-\d{5}-of-\d{5}$", "", text)
    text = re.sub(r"[-._]gguf$", "", text, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "model"
