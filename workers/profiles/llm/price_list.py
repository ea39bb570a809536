"""Look up prices of models in the price list of the package `genai-prices`.

The package contains the list; nothing is downloaded. It is imported only when a model is looked up.
"""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from workers.model_apis.usage import SERVICES

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice

Price = float | None


class Prices(BaseModel):
    """Prices in dollars per million tokens, which equal micro-dollars per token. None if not known.

    A kind of token without a price of its own has the price of its direction.
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
    """The prices of a whole call that the endpoint reports as served as `name`: priority, flex or fast."""

    name: str


PRICE_LIST_FIELDS = {
    "price_in": "input_mtok",
    "price_out": "output_mtok",
    "price_cached": "cache_read_mtok",
    "price_cache_write": "cache_write_mtok",
    "price_cache_hour": "cache_write_1h_mtok",
    "price_reasoning": "output_reasoning_mtok",
    "price_audio_in": "input_audio_mtok",
    "price_audio_out": "output_audio_mtok",
}
"""The name in the list of each price."""


class ListedPrices(BaseModel):
    """The entry of one model in the list."""

    model_config = ConfigDict(frozen=True)

    prices: dict[str, float]
    tiers: tuple[Tier, ...] = ()
    services: tuple[Service, ...] = ()


class PriceList:
    """The package's list of prices, loaded at the first look-up. Drop it soon: it takes 6 MB."""

    @cached_property
    def _snapshot(self) -> DataSnapshot:
        return _load_snapshot()

    def look_up(self, names: Iterable[str], provider: str | None, url: str) -> dict[str, ListedPrices]:
        """Return the listed prices by model, of `provider` (its id in the list) or of the provider at `url`.

        Models that the list does not have are missing. Prices of other providers do not count, even for a
        model of the same name.
        """
        now = datetime.datetime.now(datetime.UTC)
        prices: dict[str, ListedPrices] = {}
        for name in names:
            try:
                _, model = self._snapshot.find_provider_model(name, None, provider, None if provider else url)
            except LookupError:
                continue
            listed = _convert_price(model.get_prices(now))
            if listed is not None:
                services = tuple(_list_services(model, now, listed))
                prices[name] = listed.model_copy(update={"services": services})
        return prices


def _load_snapshot() -> DataSnapshot:
    """Load the package's list, in about 50 ms.

    The package itself would keep the list, 6 MB, in memory until the process ends.
    """
    from genai_prices.data_snapshot import DataSnapshot

    spec = importlib.util.find_spec("genai_prices.data")
    assert spec is not None
    assert spec.loader is not None
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    return DataSnapshot(providers=data.providers, from_auto_update=False)


def _list_services(model: ModelInfo, now: datetime.datetime, standard: ListedPrices) -> Iterator[Service]:
    """Yield the service tiers with other prices than `standard`.

    OpenAI names the tier in `service_tier`, Anthropic in `speed`.
    """
    for service in sorted(SERVICES):
        listed = _convert_price(model.get_prices(now, {"service_tier": service, "speed": service}))
        if listed is not None and listed.prices != standard.prices:
            yield Service(name=service, **listed.prices)


def _convert_price(listed: ModelPrice) -> ListedPrices | None:
    base: dict[str, float] = {}
    above: dict[int, dict[str, float]] = {}
    for name, key in PRICE_LIST_FIELDS.items():
        price: Any = getattr(listed, key)
        if price is None:
            continue
        for tier in getattr(price, "tiers", ()):
            above.setdefault(tier.start, {})[name] = float(tier.price)
        base[name] = float(getattr(price, "base", price))
    if "price_in" not in base and "price_out" not in base:
        return None  # priced by the image, the minute or the page
    tiers, prices = [], base
    for start in sorted(above):
        prices = {**prices, **above[start]}
        tiers.append(Tier(above=start, **prices))
    return ListedPrices(prices=base, tiers=tuple(tiers))
