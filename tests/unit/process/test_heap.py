"""Which memory of a program moves to huge pages."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from gridq.process import heap

STACK = "7f00-7f80 rw-p 00000000 00:00 0 \nSize:   8192 kB\nPages: 4 kB\nRss:   40 kB\nPss:  40 kB\n"
FILE = "7f80-7f90 rw-p 00000000 08:01 77  /lib/x.so\nSize:  16 kB\nRss:  16 kB\n"
CODE = "7f90-7fa0 r-xp 00000000 00:00 0 \nSize:  16 kB\nRss:  16 kB\n"
MODEL = "7fa0-8fa0 rw-p 00000000 00:00 0 \nSize:  4194304 kB\nRss:  4194304 kB\n"
HEAP = "5500-55f0 rw-p 00000000 00:00 0   [heap]\nSize:  16000 kB\nRss:  15000 kB\nPss:  15000 kB\n"


def test_only_data_that_is_mostly_in_use_is_chosen():
    assert heap._find_used_regions(STACK + FILE + CODE + HEAP + MODEL) == [(0x5500, 0x55F0)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_program_goes_on_with_its_heap_settled():
    try:
        heap.settle_heap()
        assert gc.get_freeze_count() > 0
        assert heap._find_used_regions(Path("/proc/self/smaps").read_text())
    finally:
        gc.unfreeze()
