"""Bounds of what a request may send: headers and body. They hold before anything is read whole."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Message, Receive

from gridq.errors import HeadersTooLarge, InputTooLarge

MOST_HEADERS = 100
HEADER_BYTES = 32 * 1024
"""Bytes of all header names and values together. What comes before they end, the request's target too, may be
twice as much (`connections`).
"""


class BoundedBody:
    """The `receive` of one request, which counts: it raises InputTooLarge once more than `most` bytes came,
    whatever the request's Content-Length said. (How long they may take, `connections` sees to.)
    """

    __slots__ = ("_receive", "most", "size")

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self.most = most
        self.size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.check()
        return message

    def check(self) -> None:
        """InputTooLarge: more has come than may."""
        if self.size > self.most:
            raise body_too_large(self.most)


def body_too_large(most: int) -> InputTooLarge:
    """A body is over `most` bytes."""
    return InputTooLarge(
        "The request's body is too large",
        {"path": "body", "expected": f"at most {most} bytes", "fix": "pass large data by reference"},
    )


def headers_fault(headers: Sequence[tuple[bytes, bytes]]) -> HeadersTooLarge | None:
    """HeadersTooLarge where they are too many or too long together."""
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES:
        return HeadersTooLarge(
            "The request's headers are too many or too long",
            {"path": "headers", "expected": f"at most {MOST_HEADERS}, and {HEADER_BYTES} bytes"},
        )
    return None
