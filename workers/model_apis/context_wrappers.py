"""Stage contexts that change what passes through them, and leave the rest to the context that they wrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Usage
from workers.model_apis.fields.table import rename_place


class WrappedContext(StageContext):
    """A context that passes everything on to `inner`."""

    def __init__(self, inner: StageContext) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def is_streaming(self) -> bool:
        return self._inner.is_streaming

    def emit(self, *pieces: Json) -> None:
        self._inner.emit(*pieces)

    def report(self, usage: Usage) -> None:
        self._inner.report(usage)

    def drop_field(self, place: str) -> None:
        self._inner.drop_field(place)

    def on_cancel(self, act: Callable[[], None]) -> None:
        self._inner.on_cancel(act)

    def cancel(self) -> None:
        self._inner.cancel()

    def check(self) -> None:
        self._inner.check()


class PricedContext(WrappedContext):
    """Adds a seat's price to every usage report."""

    def __init__(self, inner: StageContext, add_price: Callable[[Usage], Usage]) -> None:
        super().__init__(inner)
        self._add_price = add_price

    def report(self, usage: Usage) -> None:
        self._inner.report(self._add_price(usage))


class RenamingContext(WrappedContext):
    """Gives dropped fields the names that the client of a first translation has for them.

    `names` are those, by the names in the request that it made.
    """

    def __init__(self, inner: StageContext, names: Mapping[str, str]) -> None:
        super().__init__(inner)
        self._names = names

    def drop_field(self, place: str) -> None:
        self._inner.drop_field(rename_place(place, self._names))
