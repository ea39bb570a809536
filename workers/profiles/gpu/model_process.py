"""The parent's side of a model's child process: start it, ask it, stop it, notice its death."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workers
from gridq.errors import (
    ChildDied,
    GridError,
    ModelFileError,
    SeatDegraded,
    SeatUnavailable,
    StageError,
    StageTimeout,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json

STOP_SECONDS = 0.8
"""How long a cancelled generation or a closing child may take before the child is killed."""

LOAD_SECONDS = 600.0
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "BROKER_URL")
"""Environment variables with such a word in their name do not reach a child."""

_GONE = object()
_STOP = object()


@dataclass(frozen=True)
class Order:
    """What a child is to load, and on what. `devices` is its CUDA_VISIBLE_DEVICES; "": none."""

    model: str
    engine: str
    path: Path
    context: int
    concurrency: int
    threads: int
    gpu_layers: int
    embeddings: bool
    devices: str


class ModelProcess:
    """One loaded model in a child process and process group of its own.

    A thread of its own starts the child and reads it to its end: on Linux the kernel takes a child along with
    the thread that started it, so that thread must live as long as the child.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self._scratch = tempfile.mkdtemp(prefix="gridq-")
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Any]] = {}
        self._first: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._words: collections.deque[str] = collections.deque(maxlen=20)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_by_us = False
        self._gone = False
        self._shared = False  # whether several stages were under way when the child died
        self._thread = threading.Thread(target=self._live, name=f"gridq-model-{order.model}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it can be asked; false from the moment on that it is being stopped."""
        return not self._gone and not self._stopped_by_us

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def memory_mb(self) -> int:
        """Its resident memory, where the system tells it; else 0."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)

    def start(self, context: StageContext) -> None:
        """Start the child and wait until its model is loaded.

        ModelFileError: the file is no model. SeatDegraded: the engine cannot use the device. SeatUnavailable:
        the child died or took too long. JobCancelled, StageTimeout: the stage that wanted it is over; the
        child is gone.
        """
        context.on_cancel(lambda: self._first.put(_STOP))
        self._thread.start()
        try:
            reply = self._first.get(timeout=_left(context, LOAD_SECONDS))
        except queue.Empty:
            reply = _STOP
        if isinstance(reply, dict) and "loaded" in reply:
            return
        self.kill()
        context.check()
        where = {"path": str(self.order.path), "model": self.order.model, "engine": self.order.engine}
        if reply is _STOP:
            if context.deadline is not None and time.monotonic() >= context.deadline:
                raise StageTimeout("The stage's time was over while its model was loading", where)
            raise SeatUnavailable(f"The model was not loaded within {LOAD_SECONDS:g} s", where)
        if reply is _GONE:
            words = self._last_words()
            raise SeatUnavailable(
                "The engine's process died while it loaded the model", {**where, "reason": words}
            )
        raise self._refusal(reply["failed"], where)

    def _refusal(self, failed: dict[str, str], where: dict[str, Json]) -> GridError:
        reason = " ".join(filter(None, (failed["reason"], self._last_words())))
        if failed["kind"] == "model":
            return ModelFileError(
                f"The engine cannot load the file of the model {self.order.model!r}",
                {**where, "reason": reason, "fix": "download the file again; it must be a whole GGUF model"},
            )
        if failed["kind"] == "device":
            fix = f"install a build of {self.order.engine} for this device"
            return SeatDegraded(
                "The engine cannot use the device",
                {**where, "state": "broken install", "reason": reason, "fix": fix},
            )
        return SeatUnavailable("The engine cannot load the model", {**where, "reason": reason})

    def ask(self, endpoint: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """One request; its answer's chunks, each as it is made.

        StageError: the request is wrong. ChildDied: the child died under it. SeatUnavailable: the engine
        failed or is being closed. JobCancelled, StageTimeout: it is stopped, within a second.
        """
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        number = next(self._numbers)
        with self._lock:
            if not self.alive:
                raise SeatUnavailable(
                    "The model's process has ended", {"model": self.order.model, "retry_after": 0}
                )
            self._waiting[number] = replies
        context.on_cancel(lambda: replies.put(_STOP))
        finished = False
        try:
            self._send({"id": number, "endpoint": endpoint, "body": body})
            while True:
                try:
                    reply = replies.get(timeout=_left(context))
                except queue.Empty:
                    raise StageTimeout("The model's answer took longer than the stage's time") from None
                context.check()
                if reply is _GONE:
                    finished = True
                    raise self._death()
                if "chunk" in reply:
                    yield reply["chunk"]
                    continue
                finished = True
                if "error" in reply:
                    raise self._fault(reply["error"])
                return
        finally:
            if not finished:
                self._stop(number, replies)
            with self._lock:
                self._waiting.pop(number, None)

    def _stop(self, number: int, replies: queue.SimpleQueue[Any]) -> None:
        """Stop one generation. One that does not stop costs the child its life, unless others are under way
        in it.
        """
        self._send({"cancel": number})
        until = time.monotonic() + STOP_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                reply = replies.get(timeout=left)
            except queue.Empty:
                break
            if reply is _GONE or (reply is not _STOP and "chunk" not in reply):
                return
        with self._lock:
            alone = set(self._waiting) <= {number}
        if alone:
            self.kill()

    def _fault(self, error: dict[str, str]) -> GridError:
        details = {"model": self.order.model, "reason": error["reason"]}
        if error["kind"] == "request":
            return StageError(f"The engine refused the request: {error['reason']}", details)
        return SeatUnavailable("The engine failed", details)

    def _death(self) -> GridError:
        details: dict[str, Any] = {"model": self.order.model, "reason": self._last_words()}
        if self._stopped_by_us:
            return SeatUnavailable("The model's process was stopped", {**details, "retry_after": 0})
        code = self._process.returncode if self._process else None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        details["alone"] = not self._shared
        return ChildDied(f"The model's process died under the stage ({how})", details)

    def _last_words(self) -> str:
        return " ".join(self._words)[-400:]

    def close(self) -> None:
        """End the child, gently first, and wait until it is gone and its memory is back."""
        with self._lock:
            self._stopped_by_us = True
        if self._process is not None:
            self._close_input(self._process)  # the child ends with its input
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the child and its group at once; returns when it is gone."""
        with self._lock:
            self._stopped_by_us = True
        process = self._process
        if process is not None and not self._gone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _close_input(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with self._writing, contextlib.suppress(OSError):
            process.stdin.close()

    def _send(self, message: dict[str, Json]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with self._writing, contextlib.suppress(OSError, ValueError):  # its death is told by the reading side
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

    def _live(self) -> None:
        """Start the child, hand its replies out, and tell everyone who waits when it is gone."""
        try:
            process = self._spawn()
        except OSError as exc:
            self._words.append(f"{type(exc).__name__}: {exc}")
            process = None
        if process is not None:
            listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
            listener.start()
            assert process.stdout is not None
            for line in process.stdout:
                self._hand_out(json.loads(line))
            process.wait()
            listener.join(1)
            process.stdout.close()
            self._close_input(process)
        with self._lock:
            self._gone = True
            waiting = list(self._waiting.values())
            self._shared = len(waiting) > 1
        for replies in (self._first, *waiting):
            replies.put(_GONE)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        order = {
            "engine": self.order.engine,
            "path": str(self.order.path),
            "context": self.order.context,
            "concurrency": self.order.concurrency,
            "threads": self.order.threads,
            "gpu_layers": self.order.gpu_layers,
            "embeddings": self.order.embeddings,
            "scratch": self._scratch,
            "parent": os.getpid(),
        }
        with self._lock:
            if self._stopped_by_us:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.profiles.gpu.engine_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment(),
                start_new_session=True,
            )
            self._process = process
        self._send(order)
        return process

    def _environment(self) -> dict[str, str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not any(word in name.upper() for word in SECRETS)
        }
        root = str(Path(workers.__file__).resolve().parents[1])
        path = [root, *filter(None, [environment.get("PYTHONPATH")])]
        return {
            **environment,
            "PYTHONPATH": os.pathsep.join(path),
            "CUDA_VISIBLE_DEVICES": self.order.devices,
        }

    def _hand_out(self, reply: dict[str, Json]) -> None:
        if "id" not in reply:
            self._first.put(reply)
            return
        with self._lock:
            replies = self._waiting.get(reply["id"])
        if replies is not None:
            replies.put(reply)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Keep the child's last words on stderr (engines log errors only there, no prompts)."""
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._words.append(line.decode("utf-8", "replace").strip())


def _left(context: StageContext, most: float | None = None) -> float | None:
    """Seconds until the stage's deadline, `most` at most; None: no limit."""
    if context.deadline is None:
        return most
    left = max(0.0, context.deadline - time.monotonic())
    return left if most is None else min(left, most)
