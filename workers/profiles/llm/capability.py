"""What an llm seat says of itself, and what the operator says of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from workers.model_apis.models import ModelOffer
from workers.profiles.llm.budget import Budgeted
from workers.profiles.llm.price_list import Prices, Service, Tier
from workers.profiles.llm.providers import ApiName

Billing = Literal["metered", "subscription"]


class DeclaredModel(ModelOffer, Prices):
    """A model of an endpoint as the operator declares it, with the prices that the operator pays."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RemoteModel(ModelOffer, Prices):
    """A model of an endpoint with what is known of its prices; `tiers` are those of long calls, `services`
    those of calls that are served in another way.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    tiers: tuple[Tier, ...] = ()
    services: tuple[Service, ...] = ()


class LlmCapability(BaseModel):
    """An llm seat's descriptor: its endpoint's host and its models, the preferred one first. It holds no
    secret. `states_cost`: each answer says what it cost.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    models: tuple[RemoteModel, ...] = Field(min_length=1)
    billing: Billing = "metered"
    states_cost: bool = False


class LlmSeat(Budgeted):
    """One `[[llm]]` table of the seats file.

    The key is named, never written: `key_env` is an environment variable's name, `key_file` a file's path.
    Without either the endpoint is asked without a key. `allow_loopback` lets a test's local server stand in
    for a remote endpoint.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    url: str = Field(pattern=r"^https?://[^/@\s?#]+(/[^@\s?#]*)?$")
    key_env: str | None = None
    key_file: str | None = None
    provider: str | None = Field(default=None, description="whose API it is; fills in what is not said")
    api: ApiName = Field(default="openai", description="what the endpoint speaks")
    api_version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.-]+$", description="Azure's, dated")
    models: tuple[DeclaredModel, ...] = ()
    concurrency: int = Field(default=4, ge=1, le=512)
    billing: Billing = Field(default="metered", description="by the token, or a subscription at a flat rate")
    silence: float = Field(default=300.0, gt=0, description="seconds an endpoint may send nothing")
    headers: dict[str, str] = Field(default_factory=dict, description="sent with every call; no secrets")
    allow_loopback: bool = False
