"""The tables `[[gpu.engines]]` of the seats file: engines that their owner names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gridq.errors import ConfigError, first_fault, suggest_fix
from gridq.protocol.models import Json
from workers.model_apis.http.locality import is_local_url

NAME = r"^[a-z0-9][a-z0-9_-]*$"
EXPECTED = (
    "url; optional: name, models, concurrency, lend, key_env or key_file, silence. Or name and command; "
    "optional: env, pass_env, devices, memory_mb"
)


class NamedModel(BaseModel):
    """What a table says of one of the engine's models. What it leaves out, the engine says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    families: tuple[str, ...] = ()
    context: int | None = Field(default=None, ge=1)
    embeddings: bool | None = None
    any: bool | None = None


class EngineTable(BaseModel):
    """One `[[gpu.engines]]` table. `models` are those to lend, the preferred one first; without it all are.

    With `lend = false` the engine is left out. `silence` is how long it may send nothing, in seconds.

    With `command` the seat's worker starts the engine; `launched_engine` says what `env`, `pass_env`,
    `devices` and `memory_mb` are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(default="", pattern=r"^(https?://[^/@\s?#]+(/[^@\s?#]*)?)?$")
    name: str | None = Field(default=None, pattern=NAME)
    lend: bool = True
    models: tuple[NamedModel, ...] = ()
    concurrency: int | None = Field(default=None, ge=1, le=512)
    key_env: str | None = None
    key_file: str | None = None
    silence: float = Field(default=300.0, gt=0)
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None
    memory_mb: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _name_models(cls, table: Json) -> Json:
        """Allow `models = ["qwen3:8b"]` for `models = [{name = "qwen3:8b"}]`."""
        models = table.get("models") if isinstance(table, dict) else None
        if not isinstance(models, list):
            return table
        return {**table, "models": [{"name": each} if isinstance(each, str) else each for each in models]}

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            port = urlsplit(url).port
        except ValueError:
            port = 0
        if port == 0:
            raise ValueError("its host or port is not valid")
        return url

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.key_env and self.key_file:
            raise ValueError("it has two keys; keep key_env or key_file")
        if bool(self.url) == bool(self.command):
            raise ValueError(
                "it has both a url and a command" if self.url else "it has neither url nor command"
            )
        if self.command and self.name is None:
            raise ValueError("an engine with a command needs a name")
        return self

    @property
    def root(self) -> str:
        """The engine's root: its URL without `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_key(
    key_env: str | None, key_file: str | None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Return the key in an environment variable or a file; None if neither has one now."""
    if key_env is not None:
        return environ.get(key_env, "").strip() or None
    if key_file is not None:
        try:
            return Path(key_file).expanduser().read_text("utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            return None
    return None


def parse_tables(tables: Sequence[Json]) -> list[EngineTable]:
    """Return the engines of `tables`.

    Raises ConfigError naming the wrong table and key, also for an engine on another machine and for two
    tables with one address or name.
    """
    found: list[EngineTable] = []
    for index, table in enumerate(tables):
        path = f"gpu.engines[{index}]"
        engine = _parse(table, path)
        if engine.url and not is_local_url(engine.url):
            raise ConfigError(
                f"The engine at {engine.url} is not on this machine",
                {
                    "path": f"{path}.url",
                    "expected": "an address of this machine, such as http://127.0.0.1:11434",
                    "fix": "lend it by gridq on its own machine, or as [[llm]] with url = …",
                },
            )
        for other in found:
            if engine.url and other.url and _normalize(engine.root) == _normalize(other.root):
                raise ConfigError(
                    f"Two engines have the address {engine.root}",
                    {"path": f"{path}.url", "fix": "remove one of the tables"},
                )
            if engine.name is not None and engine.name == other.name:
                raise ConfigError(
                    f"Two engines have the name {engine.name!r}",
                    {"path": f"{path}.name", "fix": "give each engine its own name"},
                )
        found.append(engine)
    return found


def _parse(table: Json, path: str) -> EngineTable:
    try:
        return EngineTable.model_validate(table)
    except ValidationError as exc:
        field, reason = first_fault(exc)
        fix = suggest_fix(exc, EngineTable)
        if exc.errors()[0]["loc"] == ("url",):
            fix = {"fix": 'write url = "http://127.0.0.1:11434"'}
        raise ConfigError(
            "An engine's table is not valid",
            {
                "path": f"{path}.{field}" if field else path,
                "reason": reason,
                "expected": EXPECTED,
                **fix,
            },
        ) from None


def read_port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _normalize(url: str) -> tuple[int, str]:
    return read_port(url), urlsplit(url).path
