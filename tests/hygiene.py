"""The rule that no key lives for ever, as a check."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import redis

CELERY_PERMANENT = ("_kombu.*", "gridq:*", "llm:*", "gpu:*", "bench:*", "seat:*")
"""Celery's own: kombu's tables of bindings, and the queues, whose bells outlive nobody's work."""


def permanent() -> tuple[str, ...]:
    """The patterns, without the prefix, of the keys that may live for ever."""
    try:
        from gridq.store.keys import PERMANENT
    except ImportError:
        return CELERY_PERMANENT
    return (*PERMANENT, *CELERY_PERMANENT)


def keys_without_ttl(client: redis.Redis, prefix: str, allowed: Iterable[str] | None = None) -> list[str]:
    """The keys under `prefix` that live for ever and may not, without the prefix, sorted."""
    patterns = permanent() if allowed is None else tuple(allowed)
    left = []
    for raw in client.scan_iter(f"{prefix}*", count=1000):
        key = raw.decode()[len(prefix) :]
        if client.pttl(raw) == -1 and not any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns):
            left.append(key)
    return sorted(left)
