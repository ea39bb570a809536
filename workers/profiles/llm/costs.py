"""Compute the cost of an llm seat's calls.

Cache reads, cache writes, reasoning and audio have prices of their own. gridq makes no batch calls, so no
batch discount applies.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from gridq.protocol.models import Usage
from workers.profiles.llm.capability import LlmCapability, RemoteModel
from workers.profiles.llm.price_list import Price, Prices


def add_cost(usage: Usage, model: RemoteModel, seat: LlmCapability) -> Usage:
    """Return `usage` with its cost at `seat`.

    The cost is None on a subscription, the endpoint's own statement if it makes one, else computed from the
    model's prices.
    """
    if seat.billing == "subscription":
        return usage.model_copy(update={"micro_dollars": None})
    if seat.states_cost and usage.micro_dollars:
        return usage
    return price_usage(usage, model)


def price_usage(usage: Usage, model: RemoteModel) -> Usage:
    """Return `usage` with its cost at the model's prices, in micro-dollars, rounded up.

    The cost is None if a price that it needs is not known.
    """
    return usage.model_copy(update={"micro_dollars": compute_cost(usage, select_prices(model, usage))})


def select_prices(model: RemoteModel, usage: Usage) -> Prices:
    """Return the prices of a call: those of its service tier, of its input length, or the model's own."""
    by_service = (each for each in model.services if each.name == usage.service)
    by_length = (tier for tier in reversed(model.tiers) if usage.tokens_in > tier.above)
    return next(by_service, None) or next(by_length, model)


def compute_cost(usage: Usage, prices: Prices) -> int | None:
    """Return the cost in micro-dollars, rounded up, None if a price that it needs is not known."""
    cache_written = usage.tokens_cache_written - usage.tokens_cache_hour
    uncached = usage.tokens_in - usage.tokens_cached - usage.tokens_cache_written
    audio_in = min(usage.tokens_audio_in, uncached)
    answer = usage.tokens_out - usage.tokens_reasoning
    audio_out = min(usage.tokens_audio_out, answer)
    price_cache_write = _choose_price(prices.price_cache_write, prices.price_in)
    parts = (
        (uncached - audio_in, prices.price_in),
        (usage.tokens_cached, _choose_price(prices.price_cached, prices.price_in)),
        (cache_written, price_cache_write),
        (usage.tokens_cache_hour, _choose_price(prices.price_cache_hour, price_cache_write)),
        (audio_in, _choose_price(prices.price_audio_in, prices.price_in)),
        (answer - audio_out, prices.price_out),
        (usage.tokens_reasoning, _choose_price(prices.price_reasoning, prices.price_out)),
        (audio_out, _choose_price(prices.price_audio_out, prices.price_out)),
    )
    cost = Decimal(0)
    for tokens, price in parts:
        if tokens > 0:
            if price is None:
                return None
            cost += tokens * Decimal(str(price))
    if not cost and prices.price_in is None and prices.price_out is None:
        return None
    return int(cost.to_integral_value(ROUND_CEILING))


def estimate_max_cost(models: tuple[RemoteModel, ...], tokens_in: int, tokens_out: int) -> int:
    """Return the highest cost of so many tokens at a seat with `models`, in micro-dollars.

    Models without prices count as free.
    """
    usage = Usage(tokens_in=tokens_in, tokens_out=tokens_out)
    return max((price_usage(usage, model).micro_dollars or 0 for model in models), default=0)


def find_highest_prices(seat: LlmCapability) -> tuple[int, int] | None:
    """Return the highest prices of a seat's models, long calls included, in micro-dollars per million tokens.

    The first is for input, the second for output. Returns None on a subscription and if no price is known.
    """
    if seat.billing == "subscription":
        return None
    prices = [each for model in seat.models for each in (model, *model.tiers)]
    highest = [
        max((price for price in candidates if price is not None), default=None)
        for candidates in ([each.price_in for each in prices], [each.price_out for each in prices])
    ]
    if highest == [None, None]:
        return None
    return math.ceil((highest[0] or 0) * 1_000_000), math.ceil((highest[1] or 0) * 1_000_000)


def _choose_price(price: Price, fallback: Price) -> Price:
    return fallback if price is None else price
