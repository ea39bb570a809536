"""What a gateway is told beside the grid's settings: `GRIDQ_GATEWAY_<NAME>`, each in docs/settings.md."""

from __future__ import annotations

import ssl
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gridq.config.settings import FromFiles
from gridq.errors import ConfigError, first_fault

PREFIX = "GRIDQ_GATEWAY_"


class _Files(FromFiles):
    """The options whose files the environment names: `GRIDQ_GATEWAY_SECRET_FILE`."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return super().get_field_value(field, f"gateway_{field_name}")[0], field_name, False


class GatewayOptions(BaseSettings):
    """The options of one gateway. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    host: str = Field(
        "127.0.0.1",
        description="the address to listen on; beyond this machine only if the grid has API keys",
    )
    port: int = Field(8080, ge=0, le=65535, description="0: a free one")
    hold: float = Field(
        10.0, ge=0, le=3600, description="how long a job is held that nobody serves now, but did or will"
    )
    keep_alive: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="after which a silent stream sends a comment, so that proxies keep it",
    )
    max_body: int | None = Field(None, ge=1024, description="the largest body; None: GRIDQ_MAX_VALUE")
    max_json_depth: int = Field(64, ge=4, le=400, description="the deepest nesting of a body")
    threads: int = Field(16, ge=1, le=64, description="which talk to the server for requests")
    buffer: int = Field(
        256, ge=16, le=10_000, description="pieces kept for a reader that is slower than its job"
    )
    certfile: Path | None = Field(None, description="a certificate (PEM); the gateway then speaks TLS")
    keyfile: Path | None = Field(None, description="the private key of the certificate")
    origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="origins of pages that may ask the gateway from a browser"
    )
    proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="addresses and networks of the proxies before it, whose X-Forwarded-For is believed"
    )
    secret: SecretStr | None = Field(None, description="what workers show the routes for workers")

    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *_: Any, **named: Any) -> Any:
        return named["init_settings"], named["env_settings"], _Files(settings_cls)

    @field_validator("certfile", "keyfile", "max_body", "secret", mode="before")
    @classmethod
    def _given(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in value:
            try:
                ip_network(proxy, strict=False)
            except ValueError:
                raise ValueError(
                    f"{proxy!r} is neither an address nor a network such as 10.0.0.0/8"
                ) from None
        return value

    @field_validator("origins", "proxies", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(word for word in value.replace(",", " ").split() if word)
        return value


def check_certificate(options: GatewayOptions) -> None:
    """ConfigError: the certificate or its key is missing, or they are none or do not belong together."""
    if options.certfile is None:
        if options.keyfile is not None:
            raise ConfigError(
                "A key without a certificate", {"path": f"{PREFIX}KEYFILE", "fix": "give --certfile too"}
            )
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            options.certfile, options.keyfile, password=""
        )
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise ConfigError(
            f"The certificate {options.certfile} cannot be used",
            {
                "path": f"{PREFIX}CERTFILE",
                "reason": reason,
                "expected": "a PEM certificate and its private key, without a password",
            },
        ) from None


def gateway_options(**given: Any) -> GatewayOptions:
    """The options of the environment, with those `given` in their place where they are not None. ConfigError
    names the variable at fault.
    """
    try:
        return GatewayOptions(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as exc:
        field, reason = first_fault(exc)
        name = f"{PREFIX}{field.upper()}"
        raise ConfigError(f"{name} is not usable", {"path": name, "reason": reason}) from None


@cache
def options() -> GatewayOptions:
    """This process's options, read once."""
    return gateway_options()
