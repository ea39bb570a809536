"""Bounds of a request's headers and body, enforced before either is read in full."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Message, Receive

from gridq.errors import HeadersTooLarge, InputTooLarge

MAX_HEADERS = 100
"""Maximum number of headers of a request."""
MAX_HEADER_BYTES = 32 * 1024
"""Maximum size of all header names and values together. The whole head of a request, its target included,
may be twice as long (`connections`).
"""


class BoundedBody:
    """The `receive` of one request. Raises InputTooLarge after more than `max_bytes`, whatever
    Content-Length said.

    `connections` bounds the time that a body may take.
    """

    __slots__ = ("_receive", "max_bytes", "size")

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self.max_bytes = max_bytes
        self.size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.check()
        return message

    def check(self) -> None:
        """Raise InputTooLarge if more bytes came than are allowed."""
        if self.size > self.max_bytes:
            raise make_size_error(self.max_bytes)


def make_size_error(max_bytes: int) -> InputTooLarge:
    """Return the error of a body with more than `max_bytes` bytes."""
    return InputTooLarge(
        "The request body is too large",
        {"path": "body", "expected": f"at most {max_bytes} bytes", "fix": "pass large data by reference"},
    )


def check_headers(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise HeadersTooLarge if there are too many headers, or too many bytes of them."""
    if (
        len(headers) > MAX_HEADERS
        or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES
    ):
        raise HeadersTooLarge(
            "The request headers are too large",
            {
                "path": "headers",
                "expected": f"at most {MAX_HEADERS} headers with {MAX_HEADER_BYTES} bytes in all",
            },
        )
