"""A seat's key, and the client for its endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from gridq.errors import ConfigError, SeatDegraded
from gridq.protocol.betas import ANY_BETA
from workers.model_apis.anthropic.client import AnthropicClient
from workers.model_apis.google.client import GoogleClient
from workers.model_apis.http.api_client import ApiClient, Key
from workers.model_apis.openai.client import OpenAIClient
from workers.profiles.llm.capability import LlmSeat
from workers.profiles.llm.providers import PROVIDERS, has_responses

CLIENTS: Mapping[str, type[ApiClient]] = {
    api.api: api for api in (OpenAIClient, AnthropicClient, GoogleClient)
}


def read_key(seat: LlmSeat, environ: Mapping[str, str] = os.environ) -> str | None:
    """Read the seat's key, None if it needs none. Raises ConfigError if the key is missing or invalid."""
    if seat.key_env is not None:
        key = environ.get(seat.key_env, "").strip()
        if not key:
            raise ConfigError(
                f"the environment variable {seat.key_env} with its key is not set",
                {"path": f"llm.{seat.name}.key_env", "fix": f"export {seat.key_env}=…"},
            )
        return _check_key(key, f"llm.{seat.name}.key_env")
    if seat.key_file is not None:
        try:
            with open(os.path.expanduser(seat.key_file), "rb", buffering=0) as file:
                key = file.read().decode().strip()  # by the fewest calls: each request reads it
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"its key file cannot be read ({type(exc).__name__})",
                {"path": f"llm.{seat.name}.key_file", "fix": "correct the path or the permissions"},
            ) from None
        if not key:
            raise ConfigError("its key file is empty", {"path": f"llm.{seat.name}.key_file"})
        return _check_key(key, f"llm.{seat.name}.key_file")
    return None


def _check_key(key: str, path: str) -> str:
    """Return `key` if a header can carry it. Raises ConfigError, without the key, if not."""
    if key.isascii() and key.isprintable():
        return key
    expected = "one line of printable ASCII characters"
    raise ConfigError(
        "its key has a character that no key has",
        {"path": path, "expected": expected, "fix": "copy the key again"},
    )


def identify_login(seat: LlmSeat, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the endpoint and the key of a seat, to find seats that share a login.

    The endpoint is normalized. A missing key is replaced by the place where it should be.
    """
    parts = urlsplit(seat.url)
    default_port = ":443" if parts.scheme == "https" else ":80"
    endpoint = f"{parts.scheme}://{parts.netloc.lower().removesuffix(default_port)}{parts.path.rstrip('/')}"
    try:
        return endpoint, read_key(seat, environ) or ""
    except ConfigError:
        return endpoint, f"{seat.key_env} {seat.key_file}"


def make_client(seat: LlmSeat, key: Key) -> ApiClient:
    """Return the client for the seat's endpoint. It sends nothing yet."""
    provider = PROVIDERS.get(seat.provider or "")
    client = CLIENTS[seat.api](
        seat.url,
        key,
        headers=seat.headers,
        silence=seat.silence,
        key_header=provider.key_header if provider else None,
        rejects_usage_option=provider is not None and provider.rejects_usage_option,
        query=f"api-version={seat.api_version}" if seat.api_version else "",
    )
    if isinstance(client, AnthropicClient):
        client.allowed_betas = list_betas(seat) or ()
    if isinstance(client, OpenAIClient):
        client.serves_responses = serves_responses(seat)
        client.responses_by_model = read_stated_responses(seat)
        client.provider = seat.provider or ""
    return client


def list_betas(seat: LlmSeat) -> tuple[str, ...] | None:
    """Return the betas that the seat takes, None if its API has none."""
    if seat.api != AnthropicClient.api:
        return None
    return (ANY_BETA,) if seat.betas is None else seat.betas


def serves_responses(seat: LlmSeat) -> bool:
    """Return whether the seat's endpoint has OpenAI's Responses: by its table, else by its URL."""
    if seat.responses is None:
        return seat.api == OpenAIClient.api and has_responses(seat.url)
    return seat.responses


def read_stated_responses(seat: LlmSeat) -> dict[str, bool]:
    """Return whether the endpoint has Responses for the models whose own tables say so."""
    return {model.name: model.responses for model in seat.models if "responses" in model.model_fields_set}


def open_client(seat: LlmSeat) -> ApiClient:
    """Return the client of a seat that starts to work. Raises ConfigError if the key is missing.

    A key in a file is read again for each call, because tokens that are renewed there may last an hour.
    """
    key = read_key(seat)

    def read_current_key() -> str | None:
        try:
            return read_key(seat)
        except ConfigError as error:
            raise SeatDegraded(f"The seat has lost its key: {error.message}", error.details) from None

    return make_client(seat, key if seat.key_file is None else read_current_key)
