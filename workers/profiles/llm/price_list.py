"""What a model's tokens cost: the operator's word first, else the price list of the package `genai-prices`.

The package carries its list; nothing is fetched. It is imported only where a model is looked up.
"""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from workers.model_apis.usage import SERVICES

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice

Price = float | None


class Prices(BaseModel):
    """Dollars a million tokens, as providers state them, which is micro-dollars a token; None: not known.

    A kind of token without a price of its own costs what its direction does.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    price_in: Price = Field(default=None, ge=0)
    price_out: Price = Field(default=None, ge=0)
    price_cached: Price = Field(default=None, ge=0, description="read from a cache")
    price_cache_write: Price = Field(default=None, ge=0, description="written to a cache")
    price_cache_hour: Price = Field(
        default=None, ge=0, description="written to a cache that keeps it an hour"
    )
    price_reasoning: Price = Field(default=None, ge=0)
    price_audio_in: Price = Field(default=None, ge=0)
    price_audio_out: Price = Field(default=None, ge=0)


class Tier(Prices):
    """The prices of a whole call whose input has more than `above` tokens."""

    above: int = Field(ge=0)


class Service(Prices):
    """The prices of a whole call that the endpoint says it served as `name`: priority, flex or fast."""

    name: str


LISTED = {
    "price_in": "input_mtok",
    "price_out": "output_mtok",
    "price_cached": "cache_read_mtok",
    "price_cache_write": "cache_write_mtok",
    "price_cache_hour": "cache_write_1h_mtok",
    "price_reasoning": "output_reasoning_mtok",
    "price_audio_in": "input_audio_mtok",
    "price_audio_out": "output_audio_mtok",
}
"""Each price by its name in the list."""


class Listed(BaseModel):
    """What the list has of one model."""

    model_config = ConfigDict(frozen=True)

    prices: dict[str, float]
    tiers: tuple[Tier, ...] = ()
    services: tuple[Service, ...] = ()


def look_up(names: Iterable[str], provider: str | None, url: str) -> dict[str, Listed]:
    """The list's prices by model, for those that it has: of `provider` (the list's own id), else of whoever
    answers at `url`. Another's model of the same name says nothing of what this endpoint charges.
    """
    snapshot, now = _snapshot(), datetime.datetime.now(datetime.UTC)
    told: dict[str, Listed] = {}
    for name in names:
        try:
            _, model = snapshot.find_provider_model(name, None, provider, None if provider else url)
        except LookupError:
            continue
        found = _listed(model.get_prices(now))
        if found is not None:
            told[name] = found.model_copy(update={"services": tuple(_services(model, now, found))})
    return told


def _snapshot() -> DataSnapshot:
    """The package's list. It is read anew each time, in 50 ms, and let go with what is returned: the package
    itself would keep it, 6 MB, for as long as the process lives.
    """
    from genai_prices.data_snapshot import DataSnapshot

    found = importlib.util.find_spec("genai_prices.data")
    assert found is not None
    assert found.loader is not None
    data = importlib.util.module_from_spec(found)
    found.loader.exec_module(data)
    return DataSnapshot(providers=data.providers, from_auto_update=False)


def _services(model: ModelInfo, now: datetime.datetime, usual: Listed) -> Iterator[Service]:
    """The kinds of service that the list has other prices of: OpenAI says which in `service_tier`, Anthropic
    in `speed`.
    """
    for service in sorted(SERVICES):
        found = _listed(model.get_prices(now, {"service_tier": service, "speed": service}))
        if found is not None and found.prices != usual.prices:
            yield Service(name=service, **found.prices)


def _listed(listed: ModelPrice) -> Listed | None:
    base: dict[str, float] = {}
    above: dict[int, dict[str, float]] = {}
    for name, key in LISTED.items():
        price: Any = getattr(listed, key)
        if price is None:
            continue
        for tier in getattr(price, "tiers", ()):
            above.setdefault(tier.start, {})[name] = float(tier.price)
        base[name] = float(getattr(price, "base", price))
    if "price_in" not in base and "price_out" not in base:
        return None  # priced by the picture, the minute or the page
    tiers, known = [], base
    for start in sorted(above):
        known = {**known, **above[start]}
        tiers.append(Tier(above=start, **known))
    return Listed(prices=base, tiers=tuple(tiers))
