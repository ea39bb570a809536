"""The durability and the capacity of the server: eviction policy, append-only file, memory.

All of it comes from `INFO`. If the ACL does not permit that, nothing is known: a warning says so once, and no
program is kept from starting.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from redis import Redis
from redis import exceptions as faults

from gridq.errors import BrokerEvicts, GridFull
from gridq.store.connection import translate_errors
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

FULL_SHARE = 0.8
"""The share of maxmemory at which new jobs are refused: the rest is for running jobs."""

FULL_TTL_MS = 5_000
"""The time for which the server counts as full if no router says so again."""

RETRY_AFTER_SECONDS = 5.0
"""The time that a refused submitter should wait."""

VALUE_SHARE = 1 / 8
"""The share of maxmemory that one value may take: it stands beside others, below FULL_SHARE."""

COMMAND_BYTES = 1024
"""What a value's command takes beside the value itself."""

_WRITE = "#!lua flags=allow-oom\nreturn redis.call(unpack(ARGV))"

NO_APPEND_ONLY = (
    "appendonly is off: accepted jobs are lost when the server restarts. Fix: set appendonly yes in its "
    "configuration"
)
NO_INFO = (
    "the ACL does not permit INFO: maxmemory-policy, appendonly and the server's memory are not checked. "
    "Fix: grant +info, or make sure of maxmemory-policy noeviction and appendonly yes yourself"
)


def check_persistence(client: Redis) -> str | None:
    """Return a warning about how well the server keeps what it accepts, None if all is well.

    Raises BrokerEvicts if it deletes keys when its memory is full, whether it has a maxmemory yet or not.
    """
    with translate_errors():
        try:
            memory: Any = client.info("memory")
            persistence: Any = client.info("persistence")
        except faults.NoPermissionError:
            return NO_INFO
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        raise BrokerEvicts(
            f"The server's maxmemory-policy is {policy}: it may delete jobs silently",
            {
                "expected": "noeviction",
                "fix": "set maxmemory-policy noeviction in the server's configuration",
            },
        )
    return None if persistence.get("aof_enabled", 1) else NO_APPEND_ONLY


def read_largest_value(client: Redis) -> tuple[int, str] | None:
    """Return the size in bytes of the largest value that the server can take, and the option that limits it.

    None if it has neither limit, or if its ACL does not permit to ask for them. Raises BrokerError.
    """
    limits = []
    with translate_errors():
        try:
            memory: Any = client.info("memory")
            if maxmemory := int(memory.get("maxmemory", 0)):
                limits.append((int(maxmemory * VALUE_SHARE), "maxmemory of the Redis server"))
            bulk: Any = client.config_get("proto-max-bulk-len")
            if length := int(bulk.get("proto-max-bulk-len", 0)):
                limits.append((length - COMMAND_BYTES, "proto-max-bulk-len of the Redis server"))
        except faults.ResponseError:  # not permitted, or, at a hosted server, not known
            pass
    return min(limits, default=None)


class MemoryGate:
    """Closes the grid to new jobs while the server's memory is used up to FULL_SHARE, and opens it again.

    Every router checks with each sweep; `enqueue` and `admit` read the result in `memory_full`.
    """

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self._closed = False
        self._not_permitted = False

    def check(self) -> bool:
        """Check the server once. Return whether the grid is full."""
        if self._not_permitted:
            return False
        try:
            memory: Any = self.client.info("memory")
        except faults.NoPermissionError:
            self._not_permitted = True
            log.warning(NO_INFO)
            return False
        limit = int(memory.get("maxmemory", 0))
        used = int(memory["used_memory"]) - int(memory.get("mem_not_counted_for_evict", 0))
        if limit and used >= FULL_SHARE * limit:
            self._close(used, limit)
        elif self._closed:
            self._closed = False
            self.client.delete(self.keys("memory_full"))
            log.warning("the server has memory again: new jobs are accepted")
        return self._closed

    def _close(self, used: int, limit: int) -> None:
        if not self._closed:
            log.warning(
                "the server uses %.0f of %.0f MB: new jobs are refused until it uses less than %.0f",
                used / 1e6,
                limit / 1e6,
                FULL_SHARE * limit / 1e6,
            )
        self._closed = True
        with suppress(faults.OutOfMemoryError):  # then the server itself refuses new jobs
            self.client.set(self.keys("memory_full"), f"{used} {limit}", px=FULL_TTL_MS)


def write_record(client: Redis, *words: str | bytes | int) -> None:
    """Carry out a command that writes a small record of a router or worker, even if the memory is full: they
    must start and stay known, since their work frees memory.
    """
    try:
        client.execute_command(*words)  # type: ignore[no-untyped-call]
    except faults.OutOfMemoryError:
        client.eval(_WRITE, 0, *words)


def build_out_of_memory_error() -> GridFull:
    """Return the error for a job whose input the server refused for want of memory."""
    return GridFull(
        "The grid accepts no new jobs: the server has no memory for this one's input",
        {
            "retry_after": RETRY_AFTER_SECONDS,
            "fix": "wait until running jobs have ended and results have expired, or raise maxmemory",
        },
    )


def build_grid_full_error(about: str) -> GridFull:
    """Return the error that refuses a new job. `about`: the bytes used and the limit, as MemoryGate wrote."""
    used, limit = map(int, about.split(" "))
    return GridFull(
        f"The grid accepts no new jobs: {used / 1e6:.0f} of the server's {limit / 1e6:.0f} MB are used",
        {
            "used": used,
            "limit": limit,
            "expected": f"less than {FULL_SHARE:.0%} of its maxmemory",
            "retry_after": RETRY_AFTER_SECONDS,
            "fix": "wait until running jobs have ended and results have expired, or raise maxmemory",
        },
    )
