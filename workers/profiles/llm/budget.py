"""What the table of an llm seat says of how much it may give."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gridq.errors import first_fault
from gridq.protocol.budget_syntax import (
    MAX_AMOUNT,
    MINUTE,
    SEAT_UNITS,
    BudgetError,
    check_distinct,
    parse_amount,
    parse_limit,
)
from gridq.protocol.models import Limit


class SeatBudgets(BaseModel):
    """`budget` is in dollars a `period`; None: no budget set; 0: nothing may be spent. `budgets` are further
    ones, of dollars, tokens or requests in windows of their own; all of them bind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: float | None = None
    period: Literal["month", "week", "day"] = "month"
    budgets: tuple[dict[str, Any], ...] = ()
    requests_per_minute: int | None = Field(default=None, ge=0, le=100_000)
    tokens_per_minute: int | None = Field(default=None, ge=0, le=MAX_AMOUNT)

    @field_validator("budget", mode="before")
    @classmethod
    def _amount(cls, value: Any) -> Any:
        try:
            return value if value is None else parse_amount(value, "dollars") / 1_000_000
        except BudgetError as exc:
            raise BudgetError("budget", exc.message.replace("dollars", "budget", 1), exc.expected) from None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.limits()
        return self

    def limits(self) -> tuple[Limit, ...]:
        """All of it but the requests a minute. BudgetError, whose key is such as `budgets.0.per`."""
        found = []
        for index, table in enumerate(self.budgets):
            try:
                found.append(parse_limit(table, SEAT_UNITS))
            except BudgetError as exc:
                key = f"budgets.{index}" + (f".{exc.key}" if exc.key else "")
                raise BudgetError(key, exc.message, exc.expected) from None
        if self.budget is not None:
            found.insert(0, Limit(resource="money", window=self.period, amount=round(self.budget * 1_000_000)))
        if self.tokens_per_minute is not None:
            found.append(Limit(resource="tokens", window=MINUTE, amount=self.tokens_per_minute))
        try:
            return check_distinct(found)
        except BudgetError as exc:
            raise BudgetError("budgets", exc.message, exc.expected) from None

    @property
    def in_dollars(self) -> bool:
        """Whether any of its budgets is of money: then each of its models needs a price."""
        return any(limit.resource == "money" for limit in self.limits())


def describe_validation_error(exc: ValidationError, expected: str) -> tuple[str, str, str]:
    """(the key at fault, why, what is expected there) of a table that is wrong; `expected` of the whole."""
    wrong = exc.errors()[0].get("ctx", {}).get("error")
    if isinstance(wrong, BudgetError):
        return wrong.key, wrong.message, wrong.expected
    return *first_fault(exc), expected
