"""Report why a Celery program cannot start: one line and exit code 2, or a traceback and exit code 1."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from gridq.errors import GridError
from gridq.store.connection import translate_error


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the program when an error is raised. Celery only logs what a handler of its signals raises, and
    goes on with a worker that serves no seat.

    An error of gridq or of the server is printed as one line; any other shows its traceback.
    """
    try:
        yield
    except (GridError, RedisError) as exc:
        print(exc if isinstance(exc, GridError) else translate_error(exc), file=sys.stderr, flush=True)
        raise SystemExit(2) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
