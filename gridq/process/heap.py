"""Keep a process's heap small (with glibc) and quick to use, and keep garbage collection out of the way."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
"""From glibc's malloc.h."""

LARGE_BLOCK_BYTES = 1024 * 1024

MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
"""From Linux's mman.h."""

MIN_USED_SHARE = 0.75
"""The share of a region that must be in use, because a huge page takes all of its memory at once."""

MAX_REGION_KB = 128 * 1024
"""The largest region that is moved. A larger one holds a model, whose move would take seconds."""

# A region in smaps: its first line, its size and how much of it is in memory.
_REGION = re.compile(r"^([0-9a-f]+-[0-9a-f]+ .*)\nSize: +(\d+) kB\n(?:.*\n)*?Rss: +(\d+) kB$", re.M)


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


def settle_heap() -> None:
    """Make what is loaded by now cheap to use. Call this once a program has started.

    Later garbage collections leave it out: walking it would take a tenth of a request's time, and sometimes
    tens of milliseconds. It also moves to huge pages if the system has them. Else, on a machine that does
    other work, a program that waits between requests spends much of each one looking up its pages. Huge
    pages take somewhat more memory. If the system forbids them, nothing changes.
    """
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            _use_huge_pages()


def _use_huge_pages() -> None:
    """Move memory that is mostly in use to huge pages. Does nothing before Linux 6.1."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    smaps = Path("/proc/self/smaps").read_text("utf-8", "replace")  # file names may not be UTF-8
    for start, end in _find_used_regions(smaps):
        madvise(start, end - start, MADV_HUGEPAGE)
        madvise(start, end - start, MADV_COLLAPSE)


def _find_used_regions(smaps: str) -> list[tuple[int, int]]:
    """Return the start and end of each private region of data that is mostly in use. Stacks of threads are
    not among them: most of a stack is unused, and would take memory.
    """
    found = []
    for head, size, used in _REGION.findall(smaps):
        place, rights, *_, inode = head.split()[:5]
        is_data = rights == "rw-p" and inode == "0" and int(size) <= MAX_REGION_KB
        if is_data and int(used) >= MIN_USED_SHARE * int(size):
            start, _, end = place.partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


@contextmanager
def pause_gc(is_large: bool) -> Iterator[None]:
    """Pause garbage collection while something large is built, if it `is_large`: a collection would scan that
    again and again, and all other threads would wait.
    """
    if not is_large or not gc.isenabled():  # not enabled: another thread has paused it
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
