"""The child processes that a stage's own code starts: they end with a stage that is cancelled.

Linux alone says which thread started a child (`/proc/<pid>/task/<thread>/children`); elsewhere none is found,
and they end when the code ends them.
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
    """Within it, what this thread starts is killed where `context` is cancelled, with all below it and the
    process groups that they lead.
    """
    task = f"{os.getpid()}/task/{threading.get_native_id()}"
    before = set(_list_children_of_thread(task))
    lock = threading.Lock()
    within = True

    def kill() -> None:
        with lock:  # afterwards the thread's children are another stage's
            for child in _list_children_of_thread(task) if within else ():
                if child not in before:
                    kill_tree(child)

    context.on_cancel(kill)
    try:
        yield
    finally:
        if context.cancelled.is_set():
            kill()  # what it has started meanwhile
        with lock:
            within = False


def kill_tree(child: int) -> None:
    """Kill a child, all below it, and the process groups that they lead: never this process's own group."""
    own = os.getpgrp()
    # From the top: who is gone starts nobody anew, and those below are known before their parents are gone.
    for pid in list_tree(child):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid != own:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


def list_tree(child: int) -> list[int]:
    """A process and all below it, from the top."""
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
