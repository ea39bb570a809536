"""Limit the invalid keys that an address may try: a token bucket for each address, in this process."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

BURST = 10
"""Invalid keys that an address may try at once."""

REFILL_SECONDS = 6.0
"""Seconds until it may try one more."""

MAX_ADDRESSES = 4096
"""Maximum number of remembered addresses. Beyond it the one whose last attempt is oldest is forgotten."""


class FailedAttempts:
    """The addresses that tried invalid keys. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()  # address → when its bucket is full again

    def retry_after(self, address: str) -> float:
        """Return the seconds until the address may try again, 0 if it may now."""
        full_at = self._full_at.get(_bucket_of(address), 0.0)
        return max(0.0, full_at - self._clock() - (BURST - 1) * REFILL_SECONDS)

    def record(self, address: str) -> None:
        """Record that the address tried an invalid key."""
        now, network = self._clock(), _bucket_of(address)
        self._full_at[network] = max(now, self._full_at.pop(network, now)) + REFILL_SECONDS
        while len(self._full_at) > MAX_ADDRESSES:
            self._full_at.popitem(last=False)


def resolve_address(peer: str, forwarded: Sequence[str], proxies: Sequence[str]) -> str:
    """Return the client's address: `peer`, or the last address in `forwarded` that is not a proxy if
    `peer` is one.

    `forwarded` are the X-Forwarded-For headers; `proxies` are the addresses and networks whose headers
    are trusted.
    """
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    at = peer
    while hops and _is_proxy(at, proxies):
        at = hops.pop()
    return at[:64]


def _is_proxy(address: str, proxies: Sequence[str]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in ipaddress.ip_network(proxy, strict=False) for proxy in proxies)


def _bucket_of(address: str) -> str:
    """Return the bucket of an address.

    An IPv6 subscriber has a whole /64, which is one bucket. An IPv4 address written as IPv6 (::ffff:…)
    is one of its own.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
