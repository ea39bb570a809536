"""The states in which a live seat takes no work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

PAUSED = "paused"
"""The state of a seat that its owner has paused."""

OVERLOADED = "overloaded"
RATE_LIMITED = "rate_limited"
UNREACHABLE = "unreachable"
FAILING = "failing"
DEGRADED = "degraded"
UNHEALTHY = (
    "logged_out",
    "login_expired",
    "key_refused",
    "no_credit",
    RATE_LIMITED,
    OVERLOADED,
    UNREACHABLE,
    FAILING,
    "broken_install",
    DEGRADED,
)
"""The states of a seat whose circuit breaker is open. UNREACHABLE: no connection to its endpoint opens.
FAILING: several stages in a row failed there. DEGRADED covers every other cause that its owner must look at.
"""

NEEDS_OWNER = frozenset(UNHEALTHY) - {RATE_LIMITED, OVERLOADED, UNREACHABLE, FAILING}
"""The states that seldom pass unless the seat's owner does something."""

MAX_REASON_CHARACTERS = 300
"""Characters of a reason that the scripts keep."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The reason why a seat takes no work; `state` and `reason` are part of the seat's advertisement.

    Times are in seconds since 1970. `until` is None if the end is not known.
    """

    state: str
    reason: str
    since: float = field(default_factory=time.time)
    until: float | None = None

    def __post_init__(self) -> None:
        # A message of an endpoint may contain half a surrogate pair, which no JSON of the server's may.
        object.__setattr__(self, "reason", self.reason.encode("utf-8", "replace").decode())


def format_unavailable(causes: Iterable[tuple[Sequence[str], Unavailable]]) -> str:
    """Return why a seat takes no work, with the queues of each cause, as register.lua and leave.lua read it;
    empty if there is no cause.
    """
    now = time.time()
    found: list[Mapping[str, object]] = [
        {
            "queues": list(queues),
            "began_ms": max(int((now - cause.since) * 1000), 0),  # below 0: the wall clock was set back
            **({} if cause.until is None else {"ends_ms": int((cause.until - now) * 1000)}),
            "owner": cause.state in NEEDS_OWNER,
            "state": cause.state,
            "reason": cause.reason[:MAX_REASON_CHARACTERS],
        }
        for queues, cause in causes
        if queues
    ]
    return json.dumps(found) if found else ""
