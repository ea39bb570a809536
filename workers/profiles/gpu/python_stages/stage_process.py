"""The process that runs one Python stage: `python -m workers.profiles.gpu.python_stages.stage_process`.

It reads one line of JSON from stdin: `{"implementation", "value", "job", "agent", "attempt", "deadline",
"is_streaming", "sys_path", "parent"}`. It forks: the child runs the stage, and the process itself only
watches. It writes lines of JSON to stdout: `{"started": true}`, `{"pieces": [piece, …]}`, `{"usage": Usage}`,
`{"dropped": place}`, then `{"output": value}` or `{"error": record, "traceback": text}`, and last, when
nothing that the stage started is left, `{"exit": status}`, the child's exit code or the negative number of
its signal.

If stdin ends, because the worker closed it or died, the child is killed at once with all of its descendants.
On Linux those are found even if they have left their parents: the kernel gives them to this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from gridq.errors import ConfigError, GridError, SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Usage
from gridq.stages import python
from gridq.stages.child_processes import kill_tree, list_tree

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.01
MAX_KILL_SECONDS = 5.0
"""How long to wait for killed processes to be gone. One that waits for a driver may take longer."""

MAX_LOG_SECONDS = 1.0
"""How long to wait until the last lines are in the log."""

MAX_PRINTED_BYTES = 1024 * 1024
MAX_LAST_BYTES = 64 * 1024
"""How much of what a stage prints goes to the worker's log: the first of it, and of the rest the last."""


class ReplyingContext(StageContext):
    """The context of the stage in the child. What the stage reports goes to the worker."""

    def __init__(self, replies: Replies, order: dict[str, Any]) -> None:
        names = ("job", "agent", "attempt", "deadline")
        emit = (lambda piece: replies.send(pieces=[piece])) if order["is_streaming"] else None
        super().__init__(
            **{name: order[name] for name in names},
            emit=emit,
            emit_together=lambda pieces: replies.send(pieces=list(pieces)),
        )
        self._replies = replies

    def report(self, usage: Usage) -> None:
        super().report(usage)
        self._replies.send(usage=self.usage.model_dump(mode="json"))

    def drop_field(self, place: str) -> None:
        super().drop_field(place)
        self._replies.send(dropped=place)


class Replies:
    """The pipe to the worker. Writes whole lines, one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, **reply: Json) -> None:
        line = memoryview(json.dumps(reply, separators=(",", ":")).encode("ascii") + b"\n")
        with self._lock, contextlib.suppress(OSError):  # the worker is gone: so is this process, soon
            while line:
                line = line[os.write(self._descriptor, line) :]

    def end_line(self) -> None:
        """End the line that a killed child may have left unfinished."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, b"\n")


def main() -> None:
    """Run the stage that stdin orders, in a child, and leave nothing of it behind."""
    order = json.loads(sys.stdin.buffer.readline() or b"null")
    if order is None or order["parent"] != os.getppid():
        return  # the worker is gone
    _control_process(PR_SET_CHILD_SUBREAPER, 1)
    # should the stage stop it, it still ends with the worker
    _control_process(PR_SET_PDEATHSIG, signal.SIGCONT)
    replies = Replies(os.dup(1))
    os.dup2(2, 1)  # what the stage prints goes to the worker's log
    replies.send(started=True)
    own = os.getpid()
    printed, output = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            os.close(output)
            os.close(printed)
            _become_child(own)
            replies.send(**run_stage(order, replies))
            sys.stdout.flush()
        finally:
            os._exit(0)  # so that the cleanup of a library cannot hang it
    os.close(output)
    logger = threading.Thread(target=_pass_on_printed, args=(printed,), daemon=True)
    logger.start()
    threading.Thread(target=_kill_with_input, args=(child,), daemon=True).start()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    is_clean = kill_descendants()
    logger.join(MAX_LOG_SECONDS)
    replies.end_line()
    replies.send(exit=os.waitstatus_to_exitcode(status))
    os._exit(0 if is_clean else 1)  # after 1, the worker looks for the rest


def _pass_on_printed(pipe: int) -> None:
    """Write what the stage prints to the worker's log, and leave the middle out if it is much."""
    left, last, count = MAX_PRINTED_BYTES, b"", 0
    while part := os.read(pipe, 65536):
        _write_log(part[:left])
        rest = part[left:]
        left -= len(part) - len(rest)
        count += len(rest)
        last = (last + rest)[-MAX_LAST_BYTES:]
    if last:
        _write_log(b"\n(gridq left out %d bytes that the stage printed)\n" % (count - len(last)) + last)


def _write_log(text: bytes) -> None:
    with contextlib.suppress(OSError):  # it is full, or nobody reads it
        while text:
            text = text[os.write(2, text) :]


def run_stage(order: dict[str, Any], replies: Replies) -> dict[str, Any]:
    """Run the ordered stage. Return the last line that the worker gets of it."""
    sys.path[:] = order["sys_path"]
    context = ReplyingContext(replies, order)
    try:
        _load_module(order["implementation"])
        return {"output": python.call_python(order["implementation"], order["value"], context)}
    except GridError as exc:
        error = exc
    except BaseException as exc:  # not even a signal's exception may end the process without an answer
        error = StageError(f"The stage ended with {type(exc).__name__}")
    return {"error": json.loads(error.to_json()), "traceback": error.traceback}


def _load_module(implementation: str) -> None:
    """Load the module of a stage. Raises SeatUnavailable if that fails: another machine may have it."""
    try:
        python.load_modules((python.parse_module(implementation),))
    except ConfigError as exc:
        raise SeatUnavailable(f"The seat cannot load the stage: {exc.message}", exc.details) from None


def _become_child(parent: int) -> None:
    """Give the process that runs the stage its own session, no input, and its parent's death."""
    os.setsid()
    _control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the call
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _kill_with_input(child: int) -> None:
    """Kill the child and its descendants when the worker closes the pipe, or dies. `main` kills the rest."""
    while os.read(0, 4096):
        pass
    kill_tree(child)


def kill_descendants() -> bool:
    """Kill what is left below this process, and wait until it is gone. False: that took too long."""
    end = time.monotonic() + MAX_KILL_SECONDS
    while time.monotonic() < end:
        below = list_tree(os.getpid())[1:]
        if not below:
            return True
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_SECONDS)
    return False


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
