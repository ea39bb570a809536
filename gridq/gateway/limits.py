"""Bounds of what a request may send: headers, body, time. All hold before anything is read whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.types import Message, Receive

from gridq.errors import HeadersTooLarge, InputTooLarge, RequestTooSlow

MOST_HEADERS = 100
HEADER_BYTES = 32 * 1024
"""Bytes of all header names and values together, and of the request's target."""

BODY_SECONDS = 60.0
"""Seconds within which a whole body must have come."""


class BoundedBody:
    """The `receive` of one request, which counts. It raises InputTooLarge once more than `most` bytes came,
    whatever the request's Content-Length said, and RequestTooSlow where the whole is not there in time.
    """

    __slots__ = ("_receive", "_until", "most", "seconds", "size", "whole")

    def __init__(self, receive: Receive, most: int, seconds: float = BODY_SECONDS) -> None:
        self._receive = receive
        self._until: float | None = None
        self.most = most
        self.seconds = seconds
        self.size = 0
        self.whole = False

    async def __call__(self) -> Message:
        if self.whole:  # what comes now is the end of the connection, for which a stream's reader may wait
            return await self._receive()
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self.seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise RequestTooSlow(
                "The request's body did not come in time",
                {"expected": f"the whole within {self.seconds:g} s"},
            ) from None
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
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
