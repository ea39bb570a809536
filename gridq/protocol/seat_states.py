"""States in which a live seat takes no work."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

PAUSED = "paused"
"""The state of a seat that its owner has paused."""

OVERLOADED = "overloaded"
RATE_LIMITED = "rate_limited"
DEGRADED = "degraded"
UNHEALTHY = (
    "logged_out",
    "login_expired",
    "key_refused",
    "no_credit",
    RATE_LIMITED,
    OVERLOADED,
    "broken_install",
    DEGRADED,
)
"""The states of a seat whose circuit breaker is open. DEGRADED stands for every other cause."""

COOLDOWN_SECONDS = 60.0
"""How long a circuit breaker stays open at first, where the error does not say."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why a seat takes no work. `state` and `reason` are published in the seat's advertisement; times are
    seconds since 1970. `until` is None where the end is not known.
    """

    state: str
    reason: str
    since: float = field(default_factory=time.time)
    until: float | None = None
