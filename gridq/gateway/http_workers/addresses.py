"""Addresses that a worker over HTTP may not have.

A gateway posts to the URL that a worker names. It can reach what the worker itself cannot: the metadata
service of its cloud, and programs that trust its machine. Link-local, metadata, multicast and reserved
addresses are therefore refused, and those of the gateway's own machine unless the worker enrols from there.
GRIDQ_GATEWAY_WORKER_NETWORKS names exceptions. The addresses of a name are looked up again at each call.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

from gridq.errors import RequestError

LOOKUP_SECONDS = 3.0

METADATA_ADDRESSES = frozenset(
    map(
        ipaddress.ip_address,
        # Alibaba Cloud, Azure, Oracle Cloud, AWS, Google Cloud. The usual 169.254.169.254 is link-local.
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Addresses of cloud metadata services in ranges that are accepted."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


async def look_up(url: str) -> list[str]:
    """Return the addresses of a URL's host. Raises OSError if it has none, and TimeoutError."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    found = await asyncio.wait_for(
        loop.getaddrinfo(parts.hostname, parts.port or parts.scheme, type=socket.SOCK_STREAM), LOOKUP_SECONDS
    )
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def check_url(url: str, networks: Sequence[str], *, is_local: bool) -> None:
    """Check a worker's URL when it enrols. `is_local`: it does so from the gateway's own machine.

    A name without an address is accepted: the worker may not have started yet. Raises RequestError.
    """
    try:
        addresses = await look_up(url)
    except OSError:  # among them TimeoutError
        return
    except ValueError as exc:  # a port or a name that no address can have
        details = {"path": "body.url", "reason": str(exc), "expected": "a URL that a client can call"}
        raise RequestError("The worker's URL is invalid", details) from None
    for address in addresses:
        reason = find_refusal(address, networks, accepts_loopback=is_local)
        if reason:
            raise RequestError(
                f"The worker's URL leads to {address}, {reason}",
                {
                    "path": "body.url",
                    "expected": "an address at which only the worker answers",
                    "fix": "enrol with another URL, or add the address to GRIDQ_GATEWAY_WORKER_NETWORKS",
                },
            )


def find_refusal(address: str, networks: Sequence[str], *, accepts_loopback: bool) -> str:
    """Return why an address is refused, empty if it is accepted."""
    parsed = _unwrap(ipaddress.ip_address(address.partition("%")[0]))
    if any(parsed in ipaddress.ip_network(network, strict=False) for network in networks):
        return ""
    if parsed.is_loopback:
        return "" if accepts_loopback else "the gateway's own machine"
    if parsed in METADATA_ADDRESSES:
        return "the metadata service of a cloud"
    if parsed.is_link_local:
        return "a link-local address, as metadata services of clouds have"
    if parsed.is_multicast or parsed.is_unspecified or parsed.is_reserved:
        return "which is no address of a machine"
    return ""


def _unwrap(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, else the address."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    tunnelled = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or tunnelled or address
