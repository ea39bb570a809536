"""Let all threads of a worker share one heap.

glibc gives each thread its own heap, so that threads that allocate at the same time do not wait for each
other. Python's threads take turns anyway, and a heap that has grown never shrinks.
"""

from __future__ import annotations

import contextlib
import sys

M_ARENA_MAX = -8
"""From glibc's malloc.h."""


def limit_arenas() -> None:
    """Let the threads that are started from now on share one heap. Without glibc, do nothing."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(AttributeError):  # musl has no mallopt
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
