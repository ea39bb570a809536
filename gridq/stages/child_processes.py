"""Kill the child processes that a stage's code started when the stage is cancelled.

Only Linux tells which thread started a child (`/proc/<pid>/task/<thread>/children`). On other systems no
children are found, and the stage's code must end them itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridq.profiles.profile import StageContext


@contextmanager
def kill_children_on_cancel(context: StageContext) -> Iterator[None]:
    """Within the `with` block, kill what this thread starts if `context` is cancelled: children, their
    descendants, and the process groups that they lead.
    """
    task = f"{os.getpid()}/task/{threading.get_native_id()}"
    before = set(_list_children_of_thread(task))
    lock = threading.Lock()
    within = True

    def kill() -> None:
        with lock:  # later, the thread's children belong to another stage
            for child in _list_children_of_thread(task) if within else ():
                if child not in before:
                    kill_tree(child)

    context.on_cancel(kill)
    try:
        yield
    finally:
        if context.cancelled.is_set():
            kill()  # the children started since the cancellation
        with lock:
            within = False


def kill_tree(child: int) -> None:
    """Kill a child, its descendants, and the process groups that they lead.

    This process's own group is never killed.
    """
    own = os.getpgrp()
    # Parents first, so that they start no new children; the descendants were listed before.
    for pid in list_tree(child):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid != own:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


def list_tree(child: int) -> list[int]:
    """Return a process and its descendants, parents first."""
    below = [child]
    for pid in below:
        below += _list_children(pid)
    return below


def _list_children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for task in tasks for child in _list_children_of_thread(f"{pid}/task/{task}")]


def _list_children_of_thread(task: str) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{task}/children").read_text("ascii").split()]
    except OSError:
        return []
