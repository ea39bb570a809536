"""Add known prices to the models of a seat."""

from __future__ import annotations

from collections.abc import Sequence

from gridq.errors import ConfigError
from workers.profiles.llm.capability import DeclaredModel, LlmSeat, RemoteModel
from workers.profiles.llm.price_list import PRICE_LIST_FIELDS, ListedPrices, PriceList
from workers.profiles.llm.providers import PROVIDERS

Model = DeclaredModel | RemoteModel
MAX_NAMES = 5
"""Models without a price that a message names before it only counts them."""


def add_prices(
    seat: LlmSeat, models: Sequence[Model], missing: list[str], price_list: PriceList
) -> tuple[RemoteModel, ...]:
    """Return `models` with the prices that the operator states, else those of `price_list`.

    A model whose table states `price_in` and `price_out` is not looked up. If the seat has a budget in
    dollars, every model needs a price: a declared model without one raises ConfigError, a listed one is left
    out and reported in `missing`.
    """
    provider = PROVIDERS.get(seat.provider or "")
    if seat.billing == "subscription":
        return tuple(_make_remote(model, None) for model in models)
    unpriced = [model.name for model in models if model.price_in is None or model.price_out is None]
    provider_id = provider.price_list_id if provider else None
    listed = price_list.look_up(unpriced, provider_id, seat.url) if unpriced else {}
    priced = tuple(_make_remote(model, listed.get(model.name)) for model in models)
    if not seat.has_dollar_budget or (provider is not None and provider.states_cost):
        return priced
    without_price = [model.name for model in priced if not _is_priced(model)]
    if not without_price:
        return priced
    if seat.models:
        raise ConfigError(
            f"The llm seat {seat.name!r} has a budget, but its model {without_price[0]!r} has no known price",
            {
                "path": f"llm.{seat.name}.models",
                "expected": "a price for each model",
                "fix": _make_fix(without_price[0]),
            },
        )
    names = ", ".join(without_price[:MAX_NAMES]) + (
        f" and {len(without_price) - MAX_NAMES} more" if len(without_price) > MAX_NAMES else ""
    )
    missing.append(
        f"Seat {seat.name!r} has a budget and leaves out models without a known price: {names}; "
        f"{_make_fix(without_price[0])}"
    )
    return tuple(model for model in priced if _is_priced(model))


def _make_fix(name: str) -> str:
    return (
        f'add [[llm.models]] with name = "{name}", price_in = … and price_out = …, in dollars per million '
        'tokens (or replace the budget by billing = "subscription")'
    )


def _is_priced(model: RemoteModel) -> bool:
    return model.price_in is not None and (model.price_out is not None or model.embeddings)


def _make_remote(model: Model, listed: ListedPrices | None) -> RemoteModel:
    """Combine the prices of the operator, which take precedence, with those of the list.

    A listed model without an output price has no output, so the price is 0.
    """
    own = {name: getattr(model, name) for name in PRICE_LIST_FIELDS if getattr(model, name) is not None}
    fields = model.model_dump(exclude=set(PRICE_LIST_FIELDS) | {"tiers", "services"})
    if listed is None:
        return RemoteModel(**fields, **own)
    tiers = tuple(tier.model_copy(update=own) for tier in listed.tiers)
    services = tuple(service.model_copy(update=own) for service in listed.services)
    prices = {"price_out": 0.0, **listed.prices, **own}
    return RemoteModel(**fields, **prices, tiers=tiers, services=services)
