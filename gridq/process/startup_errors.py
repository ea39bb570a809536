"""How a Celery program that cannot start says so: one line, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from gridq.errors import GridError
from gridq.store.connection import translate


@contextmanager
def told() -> Iterator[None]:
    """Within it an error of gridq or of the server is one line on stderr and ends the program."""
    try:
        yield
    except (GridError, RedisError) as exc:
        print(exc if isinstance(exc, GridError) else translate(exc), file=sys.stderr, flush=True)
        raise SystemExit(2) from None
