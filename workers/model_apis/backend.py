"""The backend of a seat: the object that sends a request to a model and returns its answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json


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
