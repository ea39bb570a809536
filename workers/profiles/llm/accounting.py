"""What an llm seat's tokens cost."""

from __future__ import annotations

import math

from gridq.protocol import Usage
from workers.profiles.llm.capability import RemoteModel


def priced(usage: Usage, model: RemoteModel) -> Usage:
    """`usage` with the model's prices: micro-dollars, rounded up so that nothing used is free by rounding.

    A price that is not known counts as nothing.
    """
    spent = usage.tokens_in * (model.price_in or 0) + usage.tokens_out * (model.price_out or 0)
    return usage.model_copy(update={"micro_dollars": math.ceil(round(spent, 6))})


def dearest(models: tuple[RemoteModel, ...], tokens_in: int, tokens_out: int) -> int:
    """The most that so many tokens can cost at a seat with `models`, in micro-dollars."""
    used = Usage(tokens_in=tokens_in, tokens_out=tokens_out, micro_dollars=0, seconds=0)
    return max((priced(used, model).micro_dollars for model in models), default=0)
