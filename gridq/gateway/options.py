"""The options of a gateway: `GRIDQ_GATEWAY_<NAME>` in the environment, see docs/reference/settings.md."""

from __future__ import annotations

import ssl
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gridq.config.settings import FileSource, split_words
from gridq.errors import ConfigError, first_fault

PREFIX = "GRIDQ_GATEWAY_"
"""The prefix of the environment variables."""


class _OptionFiles(FileSource):
    """Options that the environment names a file for, such as `GRIDQ_GATEWAY_WORKER_SECRET_FILE`."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return super().get_field_value(field, f"gateway_{field_name}")[0], field_name, False


class GatewayOptions(BaseSettings):
    """The options of one gateway. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    host: str = Field(
        "127.0.0.1",
        description="the address to listen on; beyond this machine only if the grid has API keys",
    )
    port: int = Field(8080, ge=0, le=65535, description="the port to listen on; 0 picks a free one")
    keep_alive: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="how long a stream may be silent before the gateway sends a comment to keep it open; "
        "up to three times as long while the request waits for a seat and may still be refused",
    )
    max_body: int | None = Field(
        None,
        ge=1024,
        description="the largest request body; the default is 32 MB for the model APIs, and GRIDQ_MAX_VALUE "
        "for all other paths",
    )
    body_memory: int = Field(
        256 * 1024 * 1024,
        ge=1024 * 1024,
        description="how much memory the bodies of 256 KB or more may take together until they are stored in "
        "the grid; further ones wait",
    )
    max_json_depth: int = Field(64, ge=4, le=400, description="the deepest nesting of a request body")
    threads: int = Field(16, ge=1, le=64, description="the number of threads that talk to the server")
    stream_buffer: int = Field(
        256, ge=16, le=10_000, description="how many pieces of a stream are buffered for a slow client"
    )
    certfile: Path | None = Field(None, description="a certificate (PEM); the gateway then speaks TLS")
    keyfile: Path | None = Field(None, description="the private key of the certificate")
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="the origins of web pages that may call the gateway (CORS); `*` allows all"
    )
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="the addresses and networks of proxies whose X-Forwarded-For header is trusted"
    )
    worker_secret: SecretStr | None = Field(
        None, description="the secret that workers over HTTP send in X-Grid-Secret"
    )
    worker_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="addresses and networks that URLs of workers over HTTP may lead to although they are "
        "link-local, of a metadata service or of the gateway's own machine",
    )

    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *_: Any, **named: Any) -> Any:
        return named["init_settings"], named["env_settings"], _OptionFiles(settings_cls)

    @field_validator("certfile", "keyfile", "max_body", "worker_secret", mode="before")
    @classmethod
    def _empty_to_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("trusted_proxies", "worker_networks")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            try:
                ip_network(network, strict=False)
            except ValueError:
                raise ValueError(
                    f"{network!r} is not an IP address or a network such as 10.0.0.0/8"
                ) from None
        return value

    @field_validator("allowed_origins", "trusted_proxies", "worker_networks", mode="before")
    @classmethod
    def _split_words(cls, value: object) -> object:
        return split_words(value)


def check_certificate(options: GatewayOptions) -> None:
    """Check that the certificate and its key can be loaded and belong together. Raises ConfigError."""
    if options.certfile is None:
        if options.keyfile is not None:
            raise ConfigError(
                "A TLS key was given without a certificate",
                {"path": f"{PREFIX}KEYFILE", "fix": "set --certfile too"},
            )
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            options.certfile, options.keyfile, password=""
        )
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise ConfigError(
            f"The TLS certificate {options.certfile} cannot be loaded",
            {
                "path": f"{PREFIX}CERTFILE",
                "reason": reason,
                "expected": "a PEM certificate and its private key, not encrypted",
            },
        ) from None


def load_options(**given: Any) -> GatewayOptions:
    """Return the options that the environment sets; arguments that are not None take precedence.

    ConfigError names the variable that is invalid.
    """
    try:
        return GatewayOptions(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as exc:
        field, reason = first_fault(exc)
        name = f"{PREFIX}{field.upper()}"
        raise ConfigError(f"{name} is invalid", {"path": name, "reason": reason}) from None


@cache
def options() -> GatewayOptions:
    """Return this process's options, read once."""
    return load_options()
