"""What the server keeps and how much more it can take: its eviction policy, its append-only file, its memory.

All of it is asked by `INFO`. Where the ACL does not permit that, nothing is known: it is told once, and no
program is kept from starting.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from redis import Redis
from redis import exceptions as faults

from gridq.errors import BrokerEvicts, GridFull
from gridq.store.connection import translated
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

FULL = 0.8
"""The share of the server's maxmemory from which no new job is taken: the rest is for those that run."""

STANDS_MS = 5_000
"""How long the word that the server is full stands where no router says it again."""

RETRY_AFTER = 5.0
"""Seconds that a refused submitter is told to wait."""

NOT_KEPT = (
    "appendonly is off: what was accepted is lost when the server restarts. Fix: appendonly yes in its "
    "configuration"
)
UNKNOWN = (
    "the ACL does not permit INFO: nobody checks maxmemory-policy, appendonly and the server's memory. "
    "Fix: grant +info, or see to maxmemory-policy noeviction and appendonly yes yourself"
)


def check_kept(client: Redis) -> str | None:
    """What there is to say of how well the server keeps what it accepts, in one line; None where all is well.

    BrokerEvicts: it throws keys away when its memory is full, whether it has a maxmemory yet or not.
    """
    with translated():
        try:
            memory: Any = client.info("memory")
            persistence: Any = client.info("persistence")
        except faults.NoPermissionError:
            return UNKNOWN
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        raise BrokerEvicts(
            f"The server's maxmemory-policy is {policy}: it would throw jobs away without a word",
            {"expected": "noeviction", "fix": "maxmemory-policy noeviction in the server's configuration"},
        )
    return None if persistence.get("aof_enabled", 1) else NOT_KEPT


class Gate:
    """Closes the grid to new jobs while the server's memory is used up to FULL, and opens it again.

    Every router looks at each turn of its sweep; `enqueue` and `admit` read what it found in `full`.
    """

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self._closed = False
        self._blind = False

    def look(self) -> bool:
        """One look; True where the grid is full."""
        if self._blind:
            return False
        try:
            memory: Any = self.client.info("memory")
        except faults.NoPermissionError:
            self._blind = True
            log.warning(UNKNOWN)
            return False
        limit = int(memory.get("maxmemory", 0))
        used = int(memory["used_memory"]) - int(memory.get("mem_not_counted_for_evict", 0))
        if limit and used >= FULL * limit:
            self._close(used, limit)
        elif self._closed:
            self._closed = False
            self.client.delete(self.keys("memory_full"))
            log.warning("the server has memory again: new jobs are taken")
        return self._closed

    def _close(self, used: int, limit: int) -> None:
        if not self._closed:
            log.warning(
                "the server uses %.0f of %.0f MB: no new job is taken until it uses less than %.0f",
                used / 1e6,
                limit / 1e6,
                FULL * limit / 1e6,
            )
        self._closed = True
        with suppress(faults.OutOfMemoryError):  # then the server itself refuses what is new
            self.client.set(self.keys("memory_full"), f"{used} {limit}", px=STANDS_MS)


def full(about: str) -> GridFull:
    """The refusal of a new job; `about` is what the gate noted: the bytes used and the limit."""
    used, limit = map(int, about.split(" "))
    return GridFull(
        f"The grid takes no new job: {used / 1e6:.0f} of the server's {limit / 1e6:.0f} MB are used",
        {
            "used": used,
            "limit": limit,
            "expected": f"less than {FULL:.0%} of its maxmemory",
            "retry_after": RETRY_AFTER,
            "fix": "wait until jobs that run have ended and results have expired, or raise maxmemory",
        },
    )
