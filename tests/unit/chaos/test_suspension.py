"""Processes suspended by a chaos run continue even if the run is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.chaos.suspension import Suspender

RUN = """
import sys, time
from tests.chaos.suspension import Suspender
stopped = Suspender()
stopped.stop(int(sys.argv[1]))
print("stopped", flush=True)
time.sleep(60)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield started
    started.kill()
    started.wait()


def wait_for_change(child: subprocess.Popen[bytes], what: int) -> bool:
    """Wait until the child stops (WSTOPPED) or continues (WCONTINUED). Return False after 20 s."""
    until = time.monotonic() + 20
    while os.waitid(os.P_PID, child.pid, what | os.WNOHANG) is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_stopped_process_continues_if_the_run_is_killed(child: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-c", RUN, str(child.pid)], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"stopped\n"
        assert wait_for_change(child, os.WSTOPPED)
        run.kill()
    assert wait_for_change(child, os.WCONTINUED)


def test_a_stopped_process_continues_on_resume_and_on_close(child: subprocess.Popen[bytes]) -> None:
    stopped = Suspender()
    stopped.stop(child.pid)
    assert wait_for_change(child, os.WSTOPPED)
    stopped.resume(child.pid)
    assert wait_for_change(child, os.WCONTINUED)
    stopped.stop(child.pid)
    assert wait_for_change(child, os.WSTOPPED)
    stopped.close()
    assert wait_for_change(child, os.WCONTINUED)
