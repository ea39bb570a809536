"""Whether an address is this very machine, whose models belong to the gpu profile."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit


def on_this_machine(url: str) -> bool:
    """Whether `url` names this very machine: a loopback name or address, its own name, an address it has.

    Other names are not looked up: a probe must not hang on a name server.
    """
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    own = socket.gethostname().lower()
    if host == "localhost" or host.endswith(".localhost") or host in {own, f"{own}.local"}:
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
        with socket.socket(family, socket.SOCK_DGRAM) as own_socket:
            own_socket.bind((str(address), 0))  # only an address of this machine can be bound
    except OSError:
        return False
    return True
