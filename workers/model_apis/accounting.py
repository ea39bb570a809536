"""A stage's context whose reports carry what the seat charges."""

from __future__ import annotations

from collections.abc import Callable

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Usage


class AccountedContext(StageContext):
    """Reports go through `account` to the context it wraps; all else is that context's."""

    def __init__(self, inner: StageContext, account: Callable[[Usage], Usage]) -> None:
        super().__init__(
            job=inner.job,
            attempt=inner.attempt,
            deadline=inner.deadline,
            emit=inner.emit if inner.streaming else None,
        )
        self._inner = inner
        self._account = account
        inner.on_cancel(self.cancel)

    def report(self, usage: Usage) -> None:
        self.usage = self._account(usage)
        self._inner.report(self.usage)
