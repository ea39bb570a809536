"""Which memory of a program moves to huge pages."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_in_memory_may_have_any_name(tmp_path: Path):
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(path, "wb+") as file:
        file.write(bytes(4096))
        file.flush()
        with mmap.mmap(file.fileno(), 4096):
            heap._use_huge_pages()


@pytest.mark.skipif(sys.platform != "linux", reason="madvise is Linux's")
def test_a_system_that_refuses_huge_pages_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    asked = []

    class Madvise:
        argtypes = ()

        def __call__(self, start: int, length: int, advice: int) -> int:
            asked.append(advice)
            return -1

    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: SimpleNamespace(madvise=Madvise()))
    heap._use_huge_pages()
    assert set(asked) == {heap.MADV_HUGEPAGE, heap.MADV_COLLAPSE}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_settled_program_forks_and_takes_little_more_memory():
    code = (
        "import os, re, json, decimal, email, http.client, asyncio, ssl\n"
        "from pathlib import Path\n"
        "from gridq.process.heap import settle_heap\n"
        "rss = lambda: int(re.search(r'VmRSS:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "data = [str(n) for n in range(200_000)]\n"
        "before = rss(); settle_heap(); after = rss()\n"
        "child = os.fork()\n"
        "if not child: os._exit(data[-1] != '199999' or data.append('x') is not None)\n"
        "assert os.waitpid(child, 0)[1] == 0 and data[0] == '0'\n"
        "print(before, after)\n"
    )
    before, after = map(int, subprocess.check_output([sys.executable, "-c", code], timeout=60).split())
    assert after <= before / heap.MIN_USED_SHARE + 2048
