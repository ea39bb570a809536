"""How soon the kernel gives up a connection whose other end is gone without a word."""

from __future__ import annotations

import socket
from typing import Any

UNHEARD = 3000
"""ms for which data that was sent may stay unacknowledged. When a silent network comes back, TCP goes on
with its next retransmission, which may be as far off again as the silence was long; a new connection is there
sooner, and a lease of three seconds does not wait. A server that is only slow acknowledges all the same."""

_OPTIONS = {"TCP_USER_TIMEOUT": UNHEARD, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

KEEPALIVE: dict[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value for name, value in _OPTIONS.items() if hasattr(socket, name)
    },
}
"""redis-py's options for it, as far as the system has them. An idle connection is asked after ten seconds."""
