"""One heap for all threads of a worker, where its C library would else give each a heap of its own.

glibc does so that threads which allocate side by side do not wait for one another. Python's threads take
turns, and what a thread's own heap has once grown to stays with the process.
"""

from __future__ import annotations

import contextlib
import sys

M_ARENA_MAX = -8
"""glibc's malloc.h."""


def limit_arenas() -> None:
    """Let the threads that are started from now on share one heap; does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(AttributeError):  # musl has no such call
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
