"""The descriptor of an llm seat, and its table in the seats file."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gridq.protocol.models import Json
from workers.model_apis.model_catalogue import ModelOffer
from workers.model_apis.model_kinds import add_uses
from workers.profiles.llm.budget import SeatBudgets
from workers.profiles.llm.price_list import Prices, Service, Tier
from workers.profiles.llm.providers import ApiName

Billing = Literal["metered", "subscription"]

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
"""As in RFC 9110 section 5."""

FRAMING_HEADERS = frozenset({"content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"})
"""Headers that say how a request is sent and where it ends. gridq sets them; a seat cannot."""


class DeclaredModel(ModelOffer, Prices):
    """A model as the operator declares it, with the prices that the operator pays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _add_uses(cls, table: Json) -> Json:
        return add_uses(table, only_embeddings=True)


class RemoteModel(ModelOffer, Prices):
    """A model of an endpoint with its known prices.

    `tiers` are the prices of long calls, `services` those of other service tiers.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    tiers: tuple[Tier, ...] = ()
    services: tuple[Service, ...] = ()


class LlmCapability(BaseModel):
    """The descriptor of an llm seat: the host of its endpoint and its models, the preferred one first.

    It holds no secret. `states_cost` is true if each answer states its cost.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    models: tuple[RemoteModel, ...] = Field(min_length=1)
    billing: Billing = "metered"
    states_cost: bool = False


class LlmSeat(SeatBudgets):
    """One `[[llm]]` table of the seats file.

    The table names the key but does not contain it: `key_env` is an environment variable, `key_file` a path.
    Without either, requests carry no key. `allow_loopback` lets tests use a local server as an endpoint.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    url: str = Field(pattern=r"^https?://[^/@\s?#]+(/[^@\s?#]*)?$")
    key_env: str | None = None
    key_file: str | None = None
    provider: str | None = Field(default=None, description="a known provider, which sets the defaults")
    api: ApiName = Field(default="openai", description="API format of the endpoint")
    api_version: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9.-]+$", description="version of Azure's API, a date"
    )
    responses: bool | None = Field(
        default=None, description="true if the endpoint has OpenAI's Responses; unset: known by its URL"
    )
    betas: tuple[str, ...] | None = Field(
        default=None, description="betas of Anthropic's API that clients may use; unset: most"
    )
    models: tuple[DeclaredModel, ...] = ()
    concurrency: int = Field(default=4, ge=1, le=512)
    billing: Billing = Field(
        default="metered", description="metered by the token, or a flat-rate subscription"
    )
    silence: float = Field(default=300.0, gt=0, description="seconds that the endpoint may send nothing")
    headers: dict[str, str] = Field(default_factory=dict, description="sent with every request; no secrets")
    allow_loopback: bool = False

    @field_validator("url")
    @classmethod
    def _check_host(cls, url: str) -> str:
        parts = urlsplit(url)
        host = parts.hostname
        if not host or not (parts.port is None or parts.port):  # a wrong port raises ValueError
            raise ValueError("it has no host, or port 0")
        if ":" not in host:
            host.encode("idna")  # raises UnicodeError, a ValueError
        return url

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
                raise ValueError(f"{name!r} is not a header, or its value has a character that none can have")
            if name.lower() in FRAMING_HEADERS:
                raise ValueError(f"{name!r} is set by gridq")
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("two of them differ in case only")
        return headers
