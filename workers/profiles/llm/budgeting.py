"""What the table of an llm seat says of how much it may give."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gridq.budgets import MINUTE, MOST, MOST_DOLLARS, SEAT_UNITS, distinct, stated
from gridq.protocol import Limit


class Budgeted(BaseModel):
    """`budget` is in dollars a `period`; None: no budget set; 0: nothing may be spent. `budgets` are further
    ones, of dollars, tokens or requests in windows of their own; all of them bind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: float | None = Field(default=None, ge=0, le=MOST_DOLLARS)
    period: Literal["month", "week", "day"] = "month"
    budgets: tuple[dict[str, Any], ...] = ()
    requests_per_minute: int | None = Field(default=None, ge=0, le=100_000)
    tokens_per_minute: int | None = Field(default=None, ge=0, le=MOST)

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.limits()
        return self

    def limits(self) -> tuple[Limit, ...]:
        """All of it but the requests a minute. BudgetError."""
        found = [stated(table, SEAT_UNITS) for table in self.budgets]
        if self.budget is not None:
            found.insert(0, Limit(thing="money", window=self.period, most=round(self.budget * 1_000_000)))
        if self.tokens_per_minute is not None:
            found.append(Limit(thing="tokens", window=MINUTE, most=self.tokens_per_minute))
        return distinct(found)

    @property
    def in_dollars(self) -> bool:
        """Whether any of its budgets is of money: then each of its models needs a price."""
        return any(limit.thing == "money" for limit in self.limits())
