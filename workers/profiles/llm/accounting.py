"""What an llm seat's tokens cost.

A call is charged as its endpoint counts it: what was read from a cache, written to one, reasoned or heard
each at its own price. No call of gridq is a batch call, so no batch discount applies.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from gridq.protocol.models import Usage
from workers.profiles.llm.capability import LlmCapability, RemoteModel
from workers.profiles.llm.price_list import Price, Prices


def charged(usage: Usage, model: RemoteModel, seat: LlmCapability) -> Usage:
    """`usage` with what it costs at `seat`: nothing to tell (None) on a subscription, what the endpoint
    itself says of the call where it is one that does, else the model's prices.
    """
    if seat.billing == "subscription":
        return usage.model_copy(update={"micro_dollars": None})
    if seat.states_cost and usage.micro_dollars:
        return usage
    return priced(usage, model)


def priced(usage: Usage, model: RemoteModel) -> Usage:
    """`usage` with the model's prices: micro-dollars, rounded up so that nothing used is free by rounding;
    None where a price that it needs is not known.
    """
    return usage.model_copy(update={"micro_dollars": cost(usage, prices_for(model, usage))})


def prices_for(model: RemoteModel, usage: Usage) -> Prices:
    """The prices of a call as it was served and as long as it was."""
    served = (each for each in model.services if each.name == usage.service)
    long = (tier for tier in reversed(model.tiers) if usage.tokens_in > tier.above)
    return next(served, None) or next(long, model)


def cost(usage: Usage, prices: Prices) -> int | None:
    """Micro-dollars, rounded up."""
    written = usage.tokens_cache_written - usage.tokens_cache_hour
    plain = usage.tokens_in - usage.tokens_cached - usage.tokens_cache_written
    heard = min(usage.tokens_audio_in, plain)
    said = usage.tokens_out - usage.tokens_reasoning
    spoken = min(usage.tokens_audio_out, said)
    write = _first(prices.price_cache_write, prices.price_in)
    parts = (
        (plain - heard, prices.price_in),
        (usage.tokens_cached, _first(prices.price_cached, prices.price_in)),
        (written, write),
        (usage.tokens_cache_hour, _first(prices.price_cache_hour, write)),
        (heard, _first(prices.price_audio_in, prices.price_in)),
        (said - spoken, prices.price_out),
        (usage.tokens_reasoning, _first(prices.price_reasoning, prices.price_out)),
        (spoken, _first(prices.price_audio_out, prices.price_out)),
    )
    spent = Decimal(0)
    for tokens, price in parts:
        if tokens > 0:
            if price is None:
                return None
            spent += tokens * Decimal(str(price))
    if not spent and prices.price_in is None and prices.price_out is None:
        return None
    return int(spent.to_integral_value(ROUND_CEILING))


def dearest(models: tuple[RemoteModel, ...], tokens_in: int, tokens_out: int) -> int:
    """The most that so many tokens can cost at a seat with `models`, in micro-dollars; what has no price
    counts as nothing.
    """
    used = Usage(tokens_in=tokens_in, tokens_out=tokens_out)
    return max((priced(used, model).micro_dollars or 0 for model in models), default=0)


def dearest_prices(seat: LlmCapability) -> tuple[int, int] | None:
    """The dearest prices among a seat's models, those of long calls too: micro-dollars a million tokens, in
    and out. None: on a subscription, and where no price is known.
    """
    if seat.billing == "subscription":
        return None
    prices = [each for model in seat.models for each in (model, *model.tiers)]
    dearest = [
        max((price for price in found if price is not None), default=None)
        for found in ([each.price_in for each in prices], [each.price_out for each in prices])
    ]
    if dearest == [None, None]:
        return None
    return math.ceil((dearest[0] or 0) * 1_000_000), math.ceil((dearest[1] or 0) * 1_000_000)


def _first(price: Price, other: Price) -> Price:
    return other if price is None else price
