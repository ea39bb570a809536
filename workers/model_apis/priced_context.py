"""A stage context that adds a seat's price to every usage report."""

from __future__ import annotations

from collections.abc import Callable

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Usage


class PricedContext(StageContext):
    """Wraps a context: usage reports pass through `add_price` first, everything else is unchanged."""

    def __init__(self, inner: StageContext, add_price: Callable[[Usage], Usage]) -> None:
        super().__init__(
            job=inner.job,
            attempt=inner.attempt,
            deadline=inner.deadline,
            emit=inner.emit if inner.is_streaming else None,
        )
        self._inner = inner
        self._add_price = add_price
        inner.on_cancel(self.cancel)

    def emit(self, piece: Json) -> None:
        super().emit(piece)
        self.deadline = self._inner.deadline  # each piece may have moved it

    def report(self, usage: Usage) -> None:
        self.usage = self._add_price(usage)
        self._inner.report(self.usage)
