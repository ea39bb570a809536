"""The child processes of a stage are killed when the stage is cancelled."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridq.profiles.profile import StageContext
from gridq.stages.child_processes import kill_children_on_cancel
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says which thread started a child"
)

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
FAMILY = [
    sys.executable, "-I", "-S", "-c",
    "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], start_new_session=True); "
    "print(child.pid, flush=True); child.wait()", *SLEEP,
]  # fmt: skip


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if nobody has read its exit status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def run(
    work: Callable[[StageContext, Callable[[Any], None]], None],
) -> tuple[StageContext, list[Any], threading.Thread]:
    """`work` within it on a thread of its own; what it tells."""
    context = StageContext()
    messages: list[Any] = []

    def slot() -> None:
        with kill_children_on_cancel(context):
            work(context, messages.append)

    thread = threading.Thread(target=slot)
    thread.start()
    return context, messages, thread


@pytest.mark.parametrize("session", [False, True], ids=["in our group", "in one of its own"])
def test_children_and_grandchildren_are_killed(session: bool) -> None:
    def work(context: StageContext, send: Callable[[Any], None]) -> None:
        child = subprocess.Popen(FAMILY, stdout=subprocess.PIPE, start_new_session=session)
        assert child.stdout is not None
        send((child.pid, int(child.stdout.readline())))
        child.stdout.close()
        send(child.wait())

    context, messages, thread = run(work)
    wait_for(lambda: bool(messages))
    context.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert messages[1] == -9
    wait_for(lambda: all(has_ended(pid) for pid in messages[0]))


def test_other_processes_are_not_killed() -> None:
    own = subprocess.Popen(SLEEP)
    before: list[subprocess.Popen[bytes]] = []
    context = StageContext()

    def slot() -> None:
        before.append(subprocess.Popen(SLEEP))  # of the stage that ran here before
        with kill_children_on_cancel(context):
            context.cancelled.wait(10)
        before.append(subprocess.Popen(SLEEP))  # and of the one after it

    thread = threading.Thread(target=slot)
    thread.start()
    wait_for(lambda: bool(before))
    context.cancel()
    thread.join(10)
    context.cancel()
    assert [child.poll() for child in (own, *before)] == [None, None, None]
    for child in (own, *before):
        child.kill()
        child.wait()


def test_a_child_started_after_the_cancel_is_killed_at_the_end() -> None:
    def work(context: StageContext, send: Callable[[Any], None]) -> None:
        context.cancelled.wait(10)
        send(subprocess.Popen(SLEEP))

    context, messages, thread = run(work)
    context.cancel()
    thread.join(10)
    assert messages[0].wait(10) == -9


def test_without_a_cancel_nothing_is_killed() -> None:
    _, messages, thread = run(lambda context, send: send(subprocess.Popen(SLEEP)))
    thread.join(10)
    assert messages[0].poll() is None
    messages[0].kill()
    messages[0].wait()
