"""The budget and rate limits in the table of an llm seat."""

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
    """The budget fields of an llm seat's table.

    `budget` is in dollars per `period`; None sets no budget, 0 allows no spending. `budgets` are further
    limits on dollars, tokens or requests, each with a window of its own. All of them apply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: float | None = None
    period: Literal["month", "week", "day"] = "month"
    budgets: tuple[dict[str, Any], ...] = ()
    requests_per_minute: int | None = Field(default=None, ge=0, le=100_000)
    tokens_per_minute: int | None = Field(default=None, ge=0, le=MAX_AMOUNT)

    @field_validator("budget", mode="before")
    @classmethod
    def _parse_amount(cls, value: Any) -> Any:
        try:
            return value if value is None else parse_amount(value, "dollars") / 1_000_000
        except BudgetError as exc:
            raise BudgetError("budget", exc.message.replace("dollars", "budget", 1), exc.expected) from None

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        self.limits()
        return self

    def limits(self) -> tuple[Limit, ...]:
        """Return all limits except `requests_per_minute`.

        Raises BudgetError whose key names the wrong field, such as `budgets.0.per`.
        """
        limits = []
        for index, table in enumerate(self.budgets):
            try:
                limits.append(parse_limit(table, SEAT_UNITS))
            except BudgetError as exc:
                key = f"budgets.{index}" + (f".{exc.key}" if exc.key else "")
                raise BudgetError(key, exc.message, exc.expected) from None
        if self.budget is not None:
            limits.insert(
                0, Limit(resource="money", window=self.period, amount=round(self.budget * 1_000_000))
            )
        if self.tokens_per_minute is not None:
            limits.append(Limit(resource="tokens", window=MINUTE, amount=self.tokens_per_minute))
        try:
            return check_distinct(limits)
        except BudgetError as exc:
            raise BudgetError("budgets", exc.message, exc.expected) from None

    @property
    def has_dollar_budget(self) -> bool:
        """True if any of its limits is in dollars. Then each of its models needs a price."""
        return any(limit.resource == "money" for limit in self.limits())


def describe_validation_error(exc: ValidationError, expected: str) -> tuple[str, str, str]:
    """Return the wrong key of a table, the reason and what was expected there.

    `expected` describes the whole table.
    """
    error = exc.errors()[0].get("ctx", {}).get("error")
    if isinstance(error, BudgetError):
        return error.key, error.message, error.expected
    return *first_fault(exc), expected
