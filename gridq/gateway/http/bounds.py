"""Bounds of a request's headers and body, enforced before either is read in full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.types import Message, Receive

from gridq.errors import HeadersTooLarge, InputTooLarge
from gridq.gateway.http.body_memory import LARGE_BODY_BYTES, BodyMemory

MAX_HEADERS = 100
"""Maximum number of headers of a request."""
MAX_HEADER_BYTES = 32 * 1024
"""Maximum size of all header names and values together. The whole head of a request, its target included,
may be twice as long (`connections`).
"""


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The largest body of a request in bytes, and the name of what sets it."""

    max_bytes: int
    name: str


class BoundedBody:
    """The `receive` of one request. Raises InputTooLarge after more bytes than the limit allows, whatever
    Content-Length said.

    A large body reserves its memory before it is read (GatewayBusy, see `body_memory`), and asks
    `read_server_limit` first if the Redis server can store it. `length` is that of Content-Length, None for a
    chunked body. `connections` bounds the time that a body may take.
    """

    __slots__ = (
        "_has_ended",
        "_length",
        "_memory",
        "_read_server_limit",
        "_receive",
        "limit",
        "reserved",
        "size",
    )

    def __init__(
        self,
        receive: Receive,
        limit: BodyLimit,
        memory: BodyMemory,
        read_server_limit: Callable[[], Awaitable[BodyLimit | None]],
        length: int | None = None,
    ) -> None:
        self._receive = receive
        self._memory = memory
        self._read_server_limit = read_server_limit
        self._length = length
        self._has_ended = False
        self.limit = limit
        self.size = 0
        self.reserved = 0

    async def __call__(self) -> Message:
        size = self.size if self._length is None else self._length
        if size > LARGE_BODY_BYTES and not self.reserved and not self._has_ended:
            await self._reserve()
        message = await self._receive()
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self._has_ended = not message.get("more_body", False)
            self.check()
        return message

    async def _reserve(self) -> None:
        limit = await self._read_server_limit()
        if limit is not None:
            self.lower(limit)
            self._memory.limit_to(limit.max_bytes)  # the server buffers what is on its way to it
        size = self.limit.max_bytes if self._length is None else self._length
        await self._memory.reserve(size)
        self.reserved = size

    def release(self) -> None:
        """Give back the memory that was reserved: the body is stored, or its request has ended."""
        size, self.reserved = self.reserved, 0
        self._has_ended = True
        if size:
            self._memory.release(size)

    def lower(self, limit: BodyLimit) -> None:
        """Apply another limit if it is lower. Raises InputTooLarge if the body exceeds it already."""
        if limit.max_bytes < self.limit.max_bytes:
            self.limit = limit
            self.check()

    def check(self) -> None:
        """Raise InputTooLarge if the body is longer than the limit, or is going to be."""
        if max(self.size, self._length or 0) > self.limit.max_bytes:
            raise InputTooLarge(
                "The request body is too large",
                {
                    "path": "body",
                    "expected": f"at most {self.limit.max_bytes} bytes",
                    "reason": f"the limit is {self.limit.name}",
                    "limited_by": self.limit.name,
                    "fix": "send less, or refer to large files by a URL",
                },
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
