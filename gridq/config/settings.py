"""Every setting of a process, in one frozen object.

A setting comes from the environment variable `GRIDQ_<NAME>`, else from the file that `GRIDQ_<NAME>_FILE`
names, else from the home folder (`gridq.config.home`), else it has its default.
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
from gridq.config.urls import add_password, check_url, parse_gateways
from gridq.errors import ConfigError, first_fault

DEFAULT_BROKER_URL = "redis://127.0.0.1:6379/0"
FILE_SUFFIX = "_FILE"


class FileSource(PydanticBaseSettingsSource):
    """Settings in files that the environment names: `GRIDQ_BROKER_PASSWORD_FILE=/run/secrets/…`.

    A secret in a file does not appear in process lists and container descriptions. One newline at its end is
    ignored. Raises ConfigError if a file cannot be read.
    """

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        variable = f"GRIDQ_{field_name.upper()}{FILE_SUFFIX}"
        path = os.environ.get(variable)
        if not path:
            return None, field_name, False
        try:
            return Path(path).read_text("utf-8").removesuffix("\n"), field_name, False
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise ConfigError(
                f"Cannot read the file that {variable} names",
                {"path": path, "reason": str(reason), "fix": f"correct {variable} or the file's permissions"},
            ) from None

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields.items()
        found = {name: self.get_field_value(field, name)[0] for name, field in fields}
        return {name: text for name, text in found.items() if text is not None}


class HomeSource(PydanticBaseSettingsSource):
    """Settings in the home folder: the grid that runs on this machine, or that it has joined.

    `<home>/config.toml` may have any setting except `home`, under its name in lower case. While `gridq up`
    runs in this home, its server takes precedence. Raises ConfigError if the file is invalid.
    """

    FROM_RUNNING_GRID = ("broker_url", "prefix", "profiles")
    """The settings that every program on this machine takes from a running `gridq up`."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields
        home = Path(self.current_state.get("home") or fields["home"].default)
        found = machine_home.read_config(home)
        unknown = [name for name in found if name not in fields or name == "home"]
        if unknown:
            path = home / machine_home.CONFIG_FILE
            raise ConfigError(
                f"{path} has an unknown setting {unknown[0]!r}",
                {"path": f"{path}:{unknown[0]}", "expected": "a setting in lower case, such as drain = 20"},
            )
        up = machine_home.read_running_record(home) or {}
        return found | {name: up[name] for name in self.FROM_RUNNING_GRID if name in up}


def split_words(value: object) -> object:
    """Return a text of words, separated by commas or white space, as a tuple; any other value as it is."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


class Settings(BaseSettings):
    """The settings of one process.

    Times are in seconds and sizes in bytes, unless the name says otherwise.
    """

    model_config = SettingsConfigDict(env_prefix="GRIDQ_", frozen=True, extra="ignore")

    broker_url: SecretStr = Field(
        SecretStr(DEFAULT_BROKER_URL),
        description=(
            "the Redis or Valkey server: `redis://`, `rediss://` (verifies certificates), `unix://` or "
            "`sentinel://`. The default is the grid that runs here or that this machine joined, else this "
            "address"
        ),
    )
    broker_password: SecretStr | None = Field(
        None,
        description=(
            "the password for `GRIDQ_BROKER_URL` if the URL has none; set it through "
            "`GRIDQ_BROKER_PASSWORD_FILE`"
        ),
    )
    url: str | None = Field(
        None,
        description=(
            "a gateway (`http://host:port` or `https://host`) that clients use instead of the server; "
            "separate several with commas, they replace each other if one is down"
        ),
    )
    prefix: str = Field(
        "gq:",
        pattern=r"^[A-Za-z0-9._-]*:?$",
        description="the start of every key in Redis, so that several grids can share a server",
    )
    home: Path = Field(
        Path.home() / ".gridq",
        description=(
            "the home folder: machine id, `config.toml`, `seats.toml`, logs, locks and the data of `gridq up`"
        ),
    )
    key: SecretStr | None = Field(
        None, description="the API key that jobs are submitted with; set it through `GRIDQ_KEY_FILE`"
    )
    quotas: Path | None = Field(
        None, description="the quotas file of a router, TOML or JSON; a router reads it again when it changes"
    )
    timezone: str = Field(
        "UTC",
        description=(
            "the time zone in which the days, weeks and months of limits begin, such as `Europe/Berlin`; "
            "set the same on every router"
        ),
    )
    flower_password_file: Path | None = Field(
        None,
        description=(
            "the file with Flower's password. Default: `flower-password` in the home folder, made at the "
            "first start"
        ),
    )
    profiles: Annotated[tuple[str, ...], NoDecode] = Field(
        ("gpu", "llm"), description="the profiles in use, by entry point name or as `module:Class`"
    )
    stages: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="modules with Python stages that this machine can import"
    )
    stages_dir: Path | None = Field(None, description="a folder with stage files (JSON)")
    http_allow: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "hosts (`host` or `host:port`) that `http_get` and `RemoteStage` may call; empty allows none"
        ),
    )
    http_timeout: float = Field(30.0, gt=0, description="the time limit of one such HTTP call, in seconds")

    lease_ms: int = Field(
        3000,
        ge=200,
        description="how long an attempt lives without a renewal, in milliseconds by the server's clock",
    )
    renew_ms: int = Field(
        1000,
        ge=50,
        validate_default=True,
        description=(
            "time between two renewals, in milliseconds; at most half of a lease. A busy seat checks for "
            "cancels and timeouts four times as often"
        ),
    )
    sweep_ms: int = Field(
        500,
        ge=50,
        validate_default=True,
        description=(
            "time between two sweeps of a router, in milliseconds; at most half of (lease − renewal)"
        ),
    )
    heartbeat: float = Field(
        10.0,
        gt=0,
        description=(
            "time between two heartbeats of a seat, in seconds; a seat is gone after three without one"
        ),
    )
    linger: float = Field(
        1.0, ge=0, description="how long a slot keeps taking stages before it returns to Celery, in seconds"
    )
    drain: float = Field(
        20.0,
        ge=0,
        le=24 * 3600.0,
        description=(
            "how long a stopping worker lets its stages finish before it hands them back, in seconds"
        ),
    )
    watchdog: float = Field(
        60.0,
        ge=0,
        description=(
            "how long a worker or router whose Celery takes no message keeps running before it exits with "
            "code 75, in seconds; 0: for ever"
        ),
    )

    max_value: int = Field(
        8 * 1024 * 1024, ge=1024, description="the largest input, output and graph, in bytes"
    )
    max_stage_input: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        description="the maximum total size of the input and the outputs that a stage reads, in bytes",
    )
    inline_value: int = Field(
        64 * 1024, ge=0, description="values longer than this get a key of their own, in bytes"
    )
    max_steps: int = Field(20_000, ge=1, description="the most steps in a graph's plan")
    max_depth: int = Field(400, ge=1, description="the deepest nesting of a graph")
    admission_wait: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="how long a submission waits for a seat of a queue that was served recently, before "
        "it is refused, in seconds; 0 disables the wait",
    )
    deadline: float = Field(
        24 * 3600.0, gt=0, description="a job's deadline if the submitter gives none, in seconds"
    )
    max_deadline: float = Field(
        7 * 24 * 3600.0, gt=0, description="the longest deadline a submitter may give, in seconds"
    )
    result_ttl: float = Field(3600.0, gt=0, description="how long a result is kept, in seconds")
    stage_timeout: float = Field(
        600.0,
        gt=0,
        description="the time limit of a stage that declares none, in seconds; each piece that it streams "
        "starts it again",
    )
    max_attempts: int = Field(
        3, ge=1, description="attempts of a stage that may fail through the fault of a seat"
    )
    max_losses: int = Field(10, ge=1, description="attempts of a stage that may be lost with their worker")
    retry_backoff: float = Field(
        2.0,
        ge=0,
        le=24 * 3600.0,
        description=(
            "how long a failing seat is left out after a stage's first failure, in seconds; doubles with "
            "each further one up to 60, minus up to half as jitter. A provider's own Retry-After takes "
            "precedence"
        ),
    )
    quarantine: float = Field(
        300.0,
        ge=0,
        le=7 * 24 * 3600.0,
        description=(
            "how long a quarantined stage waits for an operator, in seconds; 0: its job fails at once"
        ),
    )
    ledger_days: int = Field(
        62, ge=32, le=3660, description="days for which the ledger is kept; set the same on every router"
    )
    batch_age: float = Field(
        600.0, ge=0, description="batch work that has waited this long counts as interactive, in seconds"
    )

    log: Literal["text", "json"] = Field("text", description="`json` writes one JSON object a line")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        "WARNING", description="the lowest level that is logged; a program's own `-l` takes precedence"
    )
    narrate: bool = Field(
        False, description="tell what happens to jobs and seats in sentences, at any log level"
    )

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: Any, **named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            named["init_settings"],
            named["env_settings"],
            FileSource(settings_cls),
            HomeSource(settings_cls),
        )

    @model_validator(mode="before")
    @classmethod
    def _add_password(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Add the password to the URL if the URL has none."""
        password, url = (_plain(given.get(name)) for name in ("broker_password", "broker_url"))
        if password:
            given = {**given, "broker_url": add_password(url or DEFAULT_BROKER_URL, password)}
        return given

    @field_validator("log", "log_level", mode="before")
    @classmethod
    def _ignore_case(cls, value: object, info: Any) -> object:
        if isinstance(value, str):
            return value.upper() if info.field_name == "log_level" else value.lower()
        return value

    _check_timezone = field_validator("timezone")(time_zones.check_zone)
    _split_words = field_validator("profiles", "stages", "http_allow", mode="before")(split_words)

    def get_broker_url(self) -> str:
        """Return the URL of the server, with its password.

        Raises ConfigError if a gateway is set and no server: the default address would be another grid's.
        """
        if self.url is not None and "broker_url" not in self.model_fields_set:
            raise ConfigError(
                "This needs the grid's Redis server, but only a gateway is configured",
                {
                    "path": "GRIDQ_BROKER_URL",
                    "reason": f"GRIDQ_URL is {self.url}",
                    "expected": "redis://host:6379/0",
                    "fix": "set GRIDQ_BROKER_URL too, or go through the gateway: gridq.Client, gridq.submit, "
                    "`gridq run`, `gridq job`",
                },
            )
        return self.broker_url.get_secret_value()

    @field_validator("key", "url", mode="before")
    @classmethod
    def _empty_to_none(cls, value: object) -> object:
        return None if value == "" else value  # container files often set variables to nothing

    @field_validator("renew_ms", "sweep_ms")
    @classmethod
    def _check_intervals(cls, value: int, info: ValidationInfo) -> int:
        """Check that a lease survives one lost renewal, and that sweeps are frequent enough.

        After a gap between sweeps, every lease is extended, because nobody could renew it. Sweeps further
        apart than that gap would extend every lease for ever.
        """
        lease, renew = info.data.get("lease_ms", math.inf), info.data.get("renew_ms", 0)
        if info.field_name == "renew_ms" and 2 * value > lease:
            raise ValueError(f"must be at most half of GRIDQ_LEASE_MS, which is {lease}")
        if info.field_name == "sweep_ms" and 2 * value > lease - renew:
            raise ValueError(
                f"must be at most half of GRIDQ_LEASE_MS - GRIDQ_RENEW_MS, which is {lease} - {renew}"
            )
        return value


@cache
def settings() -> Settings:
    """Return the settings of this process, which are read once.

    Raises ConfigError with the variable at fault.
    """
    try:
        config = Settings()
    except ValidationError as exc:
        field, reason = first_fault(exc)
        name = _locate(field)
        raise ConfigError(f"{name} is invalid", {"path": name, "reason": reason}) from None
    check_url(config.broker_url.get_secret_value())
    if config.url is not None:
        parse_gateways(config.url, _locate("url"))
    return config


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value or "")


def _locate(field: str) -> str:
    """Return where a setting's value comes from: its variable, or its place in `config.toml`."""
    name = f"GRIDQ_{field.upper()}"
    home = machine_home.get_home_folder()
    if name in os.environ or name + FILE_SUFFIX in os.environ or field not in machine_home.read_config(home):
        return name
    return f"{home / machine_home.CONFIG_FILE}:{field}"
