"""The models of a seat with what is known of their prices."""

from __future__ import annotations

from collections.abc import Sequence

from gridq.errors import ConfigError
from workers.profiles.llm.capability import DeclaredModel, LlmSeat, RemoteModel
from workers.profiles.llm.price_list import LISTED, Listed, look_up
from workers.profiles.llm.providers import PROVIDERS

Model = DeclaredModel | RemoteModel
SHOWN = 5
"""Models without a price that are named; of more their number is told."""


def priced_models(seat: LlmSeat, models: Sequence[Model], missing: list[str]) -> tuple[RemoteModel, ...]:
    """`models` with the prices that the operator states, else those of the list.

    A model whose table states `price_in` and `price_out` is not looked up. Where the seat has a budget every
    model needs a price: ConfigError for one that is declared; those that the endpoint lists are left out, and
    `missing` says so.
    """
    provider = PROVIDERS.get(seat.provider or "")
    if seat.billing == "subscription":
        return tuple(_remote(model, None) for model in models)
    wanted = [model.name for model in models if model.price_in is None or model.price_out is None]
    told = look_up(wanted, provider.listed if provider else None, seat.url) if wanted else {}
    known = tuple(_remote(model, told.get(model.name)) for model in models)
    if not seat.in_dollars or (provider is not None and provider.states_cost):
        return known
    unknown = [model.name for model in known if not _is_priced(model)]
    if not unknown:
        return known
    if seat.models:
        raise ConfigError(
            f"The llm seat {seat.name!r} has a budget, but no price is known for its model {unknown[0]!r}",
            {
                "path": f"llm.{seat.name}.models",
                "expected": "a price for each model",
                "fix": _fix(unknown[0]),
            },
        )
    names = ", ".join(unknown[:SHOWN]) + (f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else "")
    missing.append(
        f"Seat {seat.name!r} has a budget, and no price is known for {names}: left out; {_fix(unknown[0])}"
    )
    return tuple(model for model in known if _is_priced(model))


def _fix(name: str) -> str:
    return (
        f'add [[llm.models]] with name = "{name}", price_in = … and price_out = …, in dollars a million '
        'tokens (or billing = "subscription" in place of the budget)'
    )


def _is_priced(model: RemoteModel) -> bool:
    return model.price_in is not None and (model.price_out is not None or model.embeddings)


def _remote(model: Model, listed: Listed | None) -> RemoteModel:
    """The operator's prices win over the list's; a model that the list has no price of an answer for gives
    none.
    """
    own = {name: getattr(model, name) for name in LISTED if getattr(model, name) is not None}
    about = model.model_dump(exclude=set(LISTED) | {"tiers", "services"})
    if listed is None:
        return RemoteModel(**about, **own)
    tiers = tuple(tier.model_copy(update=own) for tier in listed.tiers)
    services = tuple(service.model_copy(update=own) for service in listed.services)
    prices = {"price_out": 0.0, **listed.prices, **own}
    return RemoteModel(**about, **prices, tiers=tiers, services=services)
