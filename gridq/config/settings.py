"""One frozen object holds every setting; each is read from the environment variable `GRIDQ_<NAME>`, or else
from the file that `GRIDQ_<NAME>_FILE` names, or else from what stands under GRIDQ_HOME (`gridq.config.home`).
"""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from gridq.config import home as machine_home
from gridq.config import time_zones
from gridq.config.urls import check_url, gateways, with_password
from gridq.errors import ConfigError, first_fault

LOOPBACK = "redis://127.0.0.1:6379/0"
FILE = "_FILE"


class FromFiles(PydanticBaseSettingsSource):
    """The settings whose files the environment names: `GRIDQ_BROKER_PASSWORD_FILE=/run/secrets/…`.

    A secret in a file is in no process list and no container's description. One newline at its end is not
    part of it. ConfigError: a file cannot be read.
    """

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        variable = f"GRIDQ_{field_name.upper()}{FILE}"
        path = os.environ.get(variable)
        if not path:
            return None, field_name, False
        try:
            return Path(path).read_text("utf-8").removesuffix("\n"), field_name, False
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise ConfigError(
                f"{variable} names a file that cannot be read",
                {"path": path, "reason": str(why), "fix": f"correct {variable}, or the file's permissions"},
            ) from None

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields.items()
        found = {name: self.get_field_value(field, name)[0] for name, field in fields}
        return {name: text for name, text in found.items() if text is not None}


class FromHome(PydanticBaseSettingsSource):
    """The settings of this machine: which grid runs here or which it has joined.

    `<home>/config.toml` may hold any setting but `home`, under its name in lower case. While `gridq up` runs
    in this home, its server goes before. ConfigError: the file cannot be used.
    """

    FOUND = ("broker_url", "prefix", "profiles")
    """What any program on this machine takes over from a running `gridq up`."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields
        home = Path(self.current_state.get("home") or fields["home"].default)
        found = machine_home.configured(home)
        unknown = [name for name in found if name not in fields or name == "home"]
        if unknown:
            path = home / machine_home.CONFIG
            raise ConfigError(
                f"{path} has a key {unknown[0]!r} that is no setting",
                {"path": f"{path}:{unknown[0]}", "expected": "a setting in lower case, such as drain = 20"},
            )
        up = machine_home.running(home) or {}
        return found | {name: up[name] for name in self.FOUND if name in up}


class Settings(BaseSettings):
    """The settings of one process. Times are in seconds unless the name says otherwise, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="GRIDQ_", frozen=True, extra="ignore")

    broker_url: SecretStr = SecretStr(LOOPBACK)
    broker_password: SecretStr | None = Field(
        None,
        description="goes into `broker_url` where that names none, so that it can have a file of its own",
    )
    url: str | None = Field(
        None, description="of a gateway, or of several: what clients use instead of the server"
    )
    prefix: str = Field("gq:", pattern=r"^[A-Za-z0-9._-]*:?$")
    home: Path = Path.home() / ".gridq"
    key: SecretStr | None = None
    quotas: Path | None = None
    timezone: str = "UTC"
    flower_password_file: Path | None = None
    profiles: Annotated[tuple[str, ...], NoDecode] = ("gpu", "llm")
    stages: Annotated[tuple[str, ...], NoDecode] = ()
    stages_dir: Path | None = None
    http_allow: Annotated[tuple[str, ...], NoDecode] = ()
    http_timeout: float = Field(30.0, gt=0)

    lease_ms: int = Field(3000, ge=200)
    renew_ms: int = Field(1000, ge=50, validate_default=True)
    sweep_ms: int = Field(500, ge=50, validate_default=True)
    heartbeat: float = Field(10.0, gt=0)
    linger: float = Field(
        1.0, ge=0, description="how long a slot goes on taking stages before it returns to Celery"
    )
    drain: float = Field(20.0, ge=0, le=24 * 3600.0)
    watchdog: float = Field(
        60.0,
        ge=0,
        description="after which a worker or router ends whose Celery takes no message; 0: never",
    )

    max_value: int = Field(8 * 1024 * 1024, ge=1024)
    inline_value: int = Field(64 * 1024, ge=0)
    max_steps: int = Field(20_000, ge=1)
    max_depth: int = Field(400, ge=1)
    deadline: float = Field(24 * 3600.0, gt=0)
    max_deadline: float = Field(7 * 24 * 3600.0, gt=0)
    result_ttl: float = Field(3600.0, gt=0)
    stage_timeout: float = Field(600.0, gt=0)
    max_attempts: int = Field(3, ge=1)
    max_losses: int = Field(10, ge=1)
    retry_backoff: float = Field(2.0, ge=0, le=24 * 3600.0)
    quarantine: float = Field(
        300.0,
        ge=0,
        le=7 * 24 * 3600.0,
        description="for how long an operator may save a stage that killed its runner twice",
    )
    affinity: float = Field(
        2.0, ge=0, description="for how long work is passed over for work whose model or session is at hand"
    )
    ledger_days: int = Field(
        62,
        ge=32,
        le=3660,
        description="for which the ledger is kept: longer than its longest window, a month",
    )
    batch_age: float = Field(600.0, ge=0, description="after which batch work counts as interactive")

    log: Literal["text", "json"] = "text"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "WARNING"
    narrate: bool = False

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: Any, **named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            named["init_settings"],
            named["env_settings"],
            FromFiles(settings_cls),
            FromHome(settings_cls),
        )

    @model_validator(mode="before")
    @classmethod
    def _login(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Put the password into the URL, where that has none."""
        password, url = (_plain(given.get(name)) for name in ("broker_password", "broker_url"))
        if password:
            given = {**given, "broker_url": with_password(url or LOOPBACK, password)}
        return given

    @field_validator("log", "log_level", mode="before")
    @classmethod
    def _any_case(cls, value: object, info: Any) -> object:
        if isinstance(value, str):
            return value.upper() if info.field_name == "log_level" else value.lower()
        return value

    @field_validator("profiles", "stages", "http_allow", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(word for word in value.replace(",", " ").split() if word)
        return value

    @field_validator("key", "url", mode="before")
    @classmethod
    def _given(cls, value: object) -> object:
        return None if value == "" else value  # a variable that is there and empty, as in a container's file

    @field_validator("renew_ms", "sweep_ms")
    @classmethod
    def _often(cls, value: int, info: ValidationInfo) -> int:
        """A lease outlives a renewal that was lost. Sweeps are closer together than the gap after which every
        lease is prolonged, for nobody could renew: else no lease would ever lapse.
        """
        lease, renew = info.data.get("lease_ms", math.inf), info.data.get("renew_ms", 0)
        if info.field_name == "renew_ms" and 2 * value > lease:
            raise ValueError(f"must be at most half of GRIDQ_LEASE_MS, which is {lease}")
        if info.field_name == "sweep_ms" and 2 * value > lease - renew:
            raise ValueError(f"must be at most half of GRIDQ_LEASE_MS less GRIDQ_RENEW_MS, {lease} - {renew}")
        return value

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        return time_zones.checked(value)


@cache
def settings() -> Settings:
    """This process's settings, read once; ConfigError names the variable at fault."""
    try:
        config = Settings()
    except ValidationError as exc:
        field, reason = first_fault(exc)
        name = _source(field)
        raise ConfigError(f"{name} is not usable", {"path": name, "reason": reason}) from None
    check_url(config.broker_url.get_secret_value())
    if config.url is not None:
        gateways(config.url, _source("url"))
    return config


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value or "")


def _source(field: str) -> str:
    """Where the value of a setting comes from: the variable, or its place in `config.toml`."""
    name = f"GRIDQ_{field.upper()}"
    home = machine_home.folder()
    if name in os.environ or name + FILE in os.environ or field not in machine_home.configured(home):
        return name
    return f"{home / machine_home.CONFIG}:{field}"
