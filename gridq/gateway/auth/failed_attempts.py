"""How many wrong keys an address may try: a bucket of tokens for each, in this process, bounded in number."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

BURST = 10
"""Wrong keys that an address may try at once."""

EVERY = 6.0
"""Seconds until it may try one more."""

MOST = 4096
"""Addresses that are remembered; beyond them the one that tried longest ago is forgotten."""


class Attempts:
    """The addresses that tried wrong keys. `clock` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()  # address → when its bucket is full again

    def wait(self, address: str) -> float:
        """Seconds until the address may try again; 0: it may now."""
        full_at = self._full_at.get(_network(address), 0.0)
        return max(0.0, full_at - self._clock() - (BURST - 1) * EVERY)

    def failed(self, address: str) -> None:
        """The address has tried a wrong key."""
        now, network = self._clock(), _network(address)
        self._full_at[network] = max(now, self._full_at.pop(network, now)) + EVERY
        while len(self._full_at) > MOST:
            self._full_at.popitem(last=False)


def address_of(peer: str, forwarded: Sequence[str], proxies: Sequence[str]) -> str:
    """The address of who asks: `peer`, or where that is one of the `proxies` (addresses or networks), the
    last address in the X-Forwarded-For headers `forwarded` that is none of them. Nobody else's is believed.
    """
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    at = peer
    while hops and _is_one(at, proxies):
        at = hops.pop()
    return at[:64]


def _is_one(address: str, proxies: Sequence[str]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in ipaddress.ip_network(proxy, strict=False) for proxy in proxies)


def _network(address: str) -> str:
    """What counts as one address: of IPv6 the /64 that one subscriber has whole; an IPv4 address written as
    IPv6 (::ffff:…) is that alone.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
