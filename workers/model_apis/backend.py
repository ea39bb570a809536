"""The backend of a seat: the object that sends a request to a model and returns its answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Protocol, TypeVar

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Usage
from workers.model_apis.api_request import SHAPE_ERRORS

T = TypeVar("T")

REPORT_SECONDS = 0.2
"""Interval between two reports of an answer's usage."""


class Backend(Protocol):
    """An endpoint, an engine or a program that answers requests in one API format."""

    @property
    def api(self) -> str:
        """The name of its API format."""

    @property
    def is_strict(self) -> bool:
        """True if it rejects fields that the vendor's own API does not have."""

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """Send one request and return the complete answer. Raises StageError and SeatError."""

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """Send one request and yield the events of its answer. An event that reports an error is raised."""

    def make_format_error(self, reason: str) -> SeatUnavailable:
        """Return the error for an answer that does not follow the API format."""


class TranslatingBackend:
    """The base of a backend that sends its requests, translated or fitted, to `inner`."""

    is_strict = False

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    def make_format_error(self, reason: str) -> SeatUnavailable:
        return self._inner.make_format_error(reason)

    def _translate_stream(
        self,
        path: str,
        request: dict[str, Json],
        context: StageContext,
        translate: Callable[[dict[str, Json]], Iterable[dict[str, Json]]],
    ) -> Generator[dict[str, Json]]:
        """Send `request` to the inner backend and yield the translated events of its answer."""
        with contextlib.closing(self._inner.stream(path, request, context)) as events:
            for event in events:
                yield from parse_answer(self._inner, lambda each: list(translate(each)), event)


def parse_answer(backend: Backend, parse: Callable[..., T], *values: Json) -> T:
    """Return `parse(*values)`, where `values` came from `backend`.

    Raises the backend's format error if they do not have the shape that `parse` expects.
    """
    try:
        return parse(*values)
    except SHAPE_ERRORS as exc:
        raise backend.make_format_error(f"what it sent is not of the API format ({exc})") from None


@contextlib.contextmanager
def report_usage(
    context: StageContext, backend: Backend, compute_usage: Callable[[], Usage]
) -> Iterator[Callable[[], None]]:
    """Yield a function that reports `compute_usage()`, what an answer has used so far, to `context` if it has
    not done so for REPORT_SECONDS. The last report follows when the block ends or fails.

    The function raises the format error of `backend` for usage in an unexpected shape.
    """
    next_report = 0.0

    def report() -> None:
        nonlocal next_report
        if time.monotonic() >= next_report:
            context.report(parse_answer(backend, compute_usage))
            next_report = time.monotonic() + REPORT_SECONDS

    try:
        yield report
    finally:
        with contextlib.suppress(*SHAPE_ERRORS):
            context.report(compute_usage())
