"""What an llm seat says of itself, and what the operator says of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from workers.wires.models import ModelOffer


class RemoteModel(ModelOffer):
    """A model of an endpoint. Prices are in dollars a million tokens, as providers state them; None: not
    known.

    One dollar a million tokens is one micro-dollar a token.
    """

    price_in: float | None = Field(default=None, ge=0)
    price_out: float | None = Field(default=None, ge=0)


class LlmCapability(BaseModel):
    """An llm seat's descriptor: its endpoint's host and its models, the preferred one first. It holds no
    secret.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    models: tuple[RemoteModel, ...] = Field(min_length=1)


class LlmSeat(BaseModel):
    """One `[[llm]]` table of the seats file.

    The key is named, never written: `key_env` is an environment variable's name, `key_file` a file's path.
    Without either the endpoint is asked without a key. `budget` is in dollars; None: no budget set; 0:
    nothing may be spent; it refills each `period`. `allow_loopback` lets a test's local server stand in
    for a remote endpoint.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    url: str = Field(pattern=r"^https?://[^/@\s?#]+(/[^@\s?#]*)?$")
    key_env: str | None = None
    key_file: str | None = None
    wire: Literal["openai", "anthropic"] = Field(default="openai", description="what the endpoint speaks")
    models: tuple[RemoteModel, ...] = ()
    lanes: int = Field(default=4, ge=1, le=512)
    budget: float | None = Field(default=None, ge=0)
    period: Literal["month", "week", "day"] = "month"
    requests_per_minute: int | None = Field(default=None, ge=0, le=100_000)
    silence: float = Field(default=300.0, gt=0, description="seconds an endpoint may send nothing")
    headers: dict[str, str] = Field(default_factory=dict, description="sent with every call; no secrets")
    allow_loopback: bool = False
