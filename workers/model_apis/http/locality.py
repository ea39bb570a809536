"""Recognize URLs of this machine, whose models belong to the gpu profile."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit


def is_local_url(url: str) -> bool:
    """Return whether `url` points to this machine: by loopback, by its name, or by one of its addresses.

    Does not look up other names, because a probe must not hang on a name server.
    """
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    hostname = socket.gethostname().lower()
    if host == "localhost" or host.endswith(".localhost") or host in {hostname, f"{hostname}.local"}:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe_socket:
            probe_socket.bind((str(address), 0))  # binds only to an address of this machine
    except OSError:
        return False
    return True
