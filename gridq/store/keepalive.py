"""How soon the kernel gives up a connection whose other end is gone silently."""

from __future__ import annotations

import socket
from typing import Any

UNACKNOWLEDGED_MS = 3000
"""How long data may stay unacknowledged. When a silent network comes back, TCP goes on with its next
retransmission, which may be as far off as the silence was long. A new connection is there sooner, and a lease
of three seconds does not wait. A server that is only slow still acknowledges.
"""

_OPTIONS = {"TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

KEEPALIVE: dict[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value for name, value in _OPTIONS.items() if hasattr(socket, name)
    },
}
"""redis-py's options for it, as far as the system has them. An idle connection is probed after ten
seconds.
"""
