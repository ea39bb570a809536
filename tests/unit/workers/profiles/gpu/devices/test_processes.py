"""Whose a process is, by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.waiting import wait_for
from workers.profiles.gpu.devices import processes
from workers.profiles.gpu.devices.device import DeviceProcess, Reading
from workers.profiles.gpu.devices.processes import find_whose, make_owner_mark, summarize_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
ORPHANING = f"""
import os, subprocess, sys
from workers.profiles.gpu.devices.processes import make_owner_mark
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env={{**os.environ, **make_owner_mark()}},
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
"""


def start(mark: dict[str, str]) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", SLEEP], env={**os.environ, **mark}, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


@pytest.fixture
def ours() -> Iterator[subprocess.Popen[str]]:
    child = start(make_owner_mark())
    yield child
    child.kill()
    child.communicate()


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[str]]:
    child = start({})
    yield child
    child.kill()
    child.communicate()


@pytest.fixture
def orphan() -> Iterator[int]:
    """A child of a process that has ended since."""
    made = subprocess.run(
        [sys.executable, "-c", ORPHANING], capture_output=True, text=True, check=True, cwd=os.getcwd()
    )
    pid = int(made.stdout)
    yield pid
    os.kill(pid, 9)


def test_a_child_is_ours_an_orphan_or_foreign(
    ours: subprocess.Popen[str], foreign: subprocess.Popen[str], orphan: int
) -> None:
    assert find_whose(ours.pid) == "ours"
    assert find_whose(foreign.pid) == "foreign"
    wait_for(lambda: find_whose(orphan) == "orphan")
    assert find_whose(2**22 + 1) == "foreign"


def test_an_id_that_was_used_again_makes_no_owner() -> None:
    child = start({processes.OWNER_VARIABLE: f"{os.getpid()}:1"})
    assert find_whose(child.pid) == "orphan"
    child.kill()
    child.communicate()


@pytest.mark.parametrize("mark", ["", "x", "x:1", ":"])
def test_a_mark_that_is_none_is_foreign(mark: str) -> None:
    child = start({processes.OWNER_VARIABLE: mark})
    assert find_whose(child.pid) == "foreign"
    child.kill()
    child.communicate()


def test_the_parts_of_a_devices_memory_add_up(
    ours: subprocess.Popen[str], foreign: subprocess.Popen[str], orphan: int
) -> None:
    wait_for(lambda: find_whose(orphan) == "orphan")
    sizes = {ours.pid: 3000, foreign.pid: 2000, orphan: 500}
    found = tuple(processes.describe(pid, size) for pid, size in sizes.items())
    use = summarize_memory(Reading(24_000, 16_000, 1000, found))
    assert (use.used, use.orphan, use.free, use.reserved) == (3000, 500, 16_000, 1000)
    assert use.foreign == 3500, "2,000 of a known process, 1,500 of none"
    assert sum((use.used, use.orphan, use.foreign, use.free, use.reserved)) == 24_000


@pytest.mark.parametrize("hidden", [None, (), (DeviceProcess(2**22 + 1, 3000),), (DeviceProcess(1, None),)])
def test_where_processes_are_hidden_what_was_allocated_counts(
    hidden: tuple[DeviceProcess, ...] | None,
) -> None:
    reading = Reading(24_000, 20_000, 0, hidden)
    assert summarize_memory(reading, 3000).used == 3000
    assert summarize_memory(reading, 9000).used == 4000, "no more than is in use"
    assert summarize_memory(reading, 3000).foreign == 1000


def test_gridqs_processes_are_listed_with_their_memory(ours: subprocess.Popen[str]) -> None:
    listed = {each.pid: each for each in processes.list_marked() or ()}
    assert (listed[ours.pid].memory_mb or 0) > 0
    assert listed[ours.pid].name
    assert listed[ours.pid].whose == "ours"
