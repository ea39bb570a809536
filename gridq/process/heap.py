"""Have the allocator give freed memory back to the system (only at glibc), and pause garbage collection."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
"""From glibc's malloc.h."""

LARGE_BLOCK_BYTES = 1024 * 1024


def keep_heap_small() -> None:
    """Keep one heap for all threads, and large blocks outside of it.

    glibc would give each thread a heap of its own, and put blocks as large as one that was freed before into
    them. A heap that has grown hardly ever shrinks: after a request of 30 MB, that much would stay.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # musl has no mallopt
            library = ctypes.CDLL(None)
            library.mallopt(M_ARENA_MAX, 1)
            library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


@contextmanager
def pause_gc(is_large: bool) -> Iterator[None]:
    """Pause garbage collection while something large is built: it would scan that again and again, and all
    other threads would wait.
    """
    if not is_large or not gc.isenabled():  # another thread has paused it
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
