"""A seat's key and its API format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gridq.errors import ConfigError, SeatDegraded
from workers.model_apis.anthropic.api import AnthropicApi
from workers.model_apis.google.api import GoogleApi
from workers.model_apis.http.endpoint import EndpointApi, Key
from workers.model_apis.openai.api import OpenAIApi
from workers.profiles.llm.capability import LlmSeat
from workers.profiles.llm.providers import PROVIDERS

APIS: Mapping[str, type[EndpointApi]] = {api.api: api for api in (OpenAIApi, AnthropicApi, GoogleApi)}


def key_of(seat: LlmSeat, environ: Mapping[str, str] = os.environ) -> str | None:
    """The seat's key, read where the seat says; None where it has none. ConfigError: it is not there."""
    if seat.key_env is not None:
        key = environ.get(seat.key_env, "").strip()
        if not key:
            raise ConfigError(
                f"the environment variable {seat.key_env}, which should hold its key, is not set",
                {"path": f"llm.{seat.name}.key_env", "fix": f"export {seat.key_env}=…"},
            )
        return key
    if seat.key_file is not None:
        try:
            key = Path(seat.key_file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"its key file cannot be read ({type(exc).__name__})",
                {"path": f"llm.{seat.name}.key_file", "fix": "correct the path or its permissions"},
            ) from None
        if not key:
            raise ConfigError("its key file is empty", {"path": f"llm.{seat.name}.key_file"})
        return key
    return None


def login_of(seat: LlmSeat, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Whose use a seat is: its endpoint, however its URL is written, and its key, wherever that is read. A
    key that is not there is told by where it should be.
    """
    parts = urlsplit(seat.url)
    usual = ":443" if parts.scheme == "https" else ":80"
    endpoint = f"{parts.scheme}://{parts.netloc.lower().removesuffix(usual)}{parts.path.rstrip('/')}"
    try:
        return endpoint, key_of(seat, environ) or ""
    except ConfigError:
        return endpoint, f"{seat.key_env} {seat.key_file}"


def api_of(seat: LlmSeat, key: Key) -> EndpointApi:
    """The seat's endpoint in the API format that it speaks; nothing is sent yet."""
    provider = PROVIDERS.get(seat.provider or "")
    return APIS[seat.api](
        seat.url,
        key,
        headers=seat.headers,
        silence=seat.silence,
        key_header=provider.key_header if provider else None,
        usage_unrequested=provider is not None and provider.usage_unrequested,
        query=f"api-version={seat.api_version}" if seat.api_version else "",
    )


def opened(seat: LlmSeat) -> EndpointApi:
    """The API format of a seat that is to work. A key in a file is read for each call: tokens that somebody renews
    there last an hour. ConfigError: there is no key.
    """
    key = key_of(seat)

    def fresh() -> str | None:
        try:
            return key_of(seat)
        except ConfigError as error:
            raise SeatDegraded(f"The seat has no key any more: {error.message}", error.details) from None

    return api_of(seat, key if seat.key_file is None else fresh)
