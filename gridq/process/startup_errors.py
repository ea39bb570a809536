"""Report why a Celery program cannot start: one line, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from gridq.errors import GridError
from gridq.store.connection import translate


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error of gridq or of the server as one line on stderr, and end the program."""
    try:
        yield
    except (GridError, RedisError) as exc:
        print(exc if isinstance(exc, GridError) else translate(exc), file=sys.stderr, flush=True)
        raise SystemExit(2) from None
