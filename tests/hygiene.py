"""The rule that no key lives for ever, as a check."""

from __future__ import annotations

import fnmatch

import redis

from gridq import queues
from gridq.errors import ConfigError
from gridq.store.keys import CELERY_PERMANENT, PERMANENT


def keys_without_ttl(client: redis.Redis, prefix: str) -> list[str]:
    """The keys under `prefix` that live for ever and may not, without the prefix, sorted.

    Allowed are the patterns of `gridq.store.keys` and Celery's queues, which hold only bells.
    """
    allowed = [*CELERY_PERMANENT, *(f".{pattern}" for pattern in PERMANENT)]
    left = []
    for raw in client.scan_iter(f"{prefix}*", count=1000):
        key = raw.decode()[len(prefix) :]
        named = any(fnmatch.fnmatchcase(key, pattern) for pattern in allowed)
        if client.pttl(raw) == -1 and not named and not (_is_queue(key) and client.type(raw) == b"list"):
            left.append(key)
    return sorted(left)


def _is_queue(key: str) -> bool:
    try:
        return queues.check(key) == key
    except ConfigError:
        return False
