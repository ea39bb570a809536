"""The parent's side of a model's child process: start it, send requests, stop it, and detect its death."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workers
from gridq.errors import (
    ChildDied,
    GridError,
    ModelArchitectureUnknown,
    ModelFileError,
    SeatDegraded,
    SeatMemoryShort,
    SeatUnavailable,
    StageError,
    StageTimeout,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.profiles.gpu.devices.processes import (
    make_owner_mark,
    measure_cpu_seconds,
    measure_resident_mb,
)
from workers.profiles.gpu.engines.base import DEFAULT_KV_TYPE

STOP_SECONDS = 0.8
"""Grace period of a cancelled generation or a closing child, before the child is killed."""

LOAD_SECONDS, LOAD_SECONDS_PER_GB = 300.0, 20.0
"""The most that a load may take: a file of 70 GB on a slow disk needs more than any fixed time."""

SILENCE_SECONDS = 300.0
MIN_CPU_SHARE = 0.01
"""A child that answers nothing for the first and computes for less than this share of it hangs. One that
computes may be at a long prompt: on a CPU that takes longer.
"""

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "BROKER_URL")
"""A child does not get environment variables with such a word in their name."""

PROBE: dict[str, Json] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 1,
    "temperature": 0,
    "logprobs": True,
}
PROBE_TOOL: dict[str, Json] = {
    "type": "function",
    "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}},
}
PROBES: dict[str, tuple[Json, Json]] = {"tools": (None, [PROBE_TOOL]), "reasoning_effort": ("low", "high")}
"""Two values of a field that lead to different prompts, if the model's chat template reads the field."""

SAME_LOGPROB = 1e-3
"""The difference of two log probabilities after the same prompt, at most."""

OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|failed to create.context|(?:failed|unable) to allocate|cannot allocate"
    r"|alloc\w* (?:of size )?.{0,40}failed",
    re.IGNORECASE,
)
UNKNOWN_ARCHITECTURE = re.compile(r"unknown model architecture")
"""What the engines say of a load that failed."""

MEMORY_RETRY_SECONDS = 5.0
"""Time for which a stage is not given again to a seat whose memory ran out."""

_GONE = object()
_STOP = object()


@dataclass(frozen=True)
class LoadOrder:
    """The model that a child loads, and the environment variables by which it sees its device alone."""

    model: str
    engine: str
    path: Path
    context: int
    concurrency: int
    threads: int
    gpu_layers: int
    embeddings: bool
    devices: Mapping[str, str]
    prompt_cache_mb: int = 0
    kv_type: str = DEFAULT_KV_TYPE

    def to_message(self, scratch: str) -> dict[str, Json]:
        """Return the order as the child reads it, see `engine_process`."""
        return {
            "engine": self.engine,
            "path": str(self.path),
            "context": self.context,
            "concurrency": self.concurrency,
            "threads": self.threads,
            "gpu_layers": self.gpu_layers,
            "embeddings": self.embeddings,
            "kv_type": self.kv_type,
            "prompt_cache_mb": self.prompt_cache_mb,
            "scratch": scratch,
            "parent": os.getpid(),
        }


def make_architecture_error(order: LoadOrder, reason: str) -> ModelArchitectureUnknown:
    """Return the error of a model that the installed engine is too old, or not made, to run."""
    package = order.engine.replace("_", "-")
    return ModelArchitectureUnknown(
        f"The installed {package} cannot run the model {order.model!r}",
        {
            "model": order.model,
            "path": str(order.path),
            "reason": reason,
            "fix": f"pip install --upgrade {package}, or use another model",
        },
    )


def drop_secrets(passed: Collection[str] = ()) -> dict[str, str]:
    """Return the environment of this process for a child, marked as gridq's: without gridq's settings and
    what looks like a secret, but with the variables in `passed`.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in passed
        or not (name.startswith("GRIDQ_") or any(word in name.upper() for word in SECRET_WORDS))
    }
    return {**environment, **make_owner_mark()}


def make_child_environment(devices: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an `engine_process`, which sees the device that `devices` names."""
    environment = drop_secrets()
    root = str(Path(workers.__file__).resolve().parents[1])
    python_path = [root, *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        **devices,
        "PYTHONPATH": os.pathsep.join(python_path),
        "GGML_NO_BACKTRACE": "1",  # it would attach gdb to a process that aborts, for ten seconds
    }


class ModelProcess:
    """One loaded model in a child process and process group of its own.

    A thread of its own starts the child and reads its output until it ends. On Linux the kernel kills a child
    with the thread that started it, so the thread must live as long as the child. Another thread writes to
    the child: one that reads nothing holds up neither a cancel nor its own end.
    """

    def __init__(self, order: LoadOrder) -> None:
        self.order = order
        self._scratch = tempfile.mkdtemp(prefix="gridq-")
        self._request_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: dict[int, queue.SimpleQueue[Any]] = {}
        self._load_replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stderr_lines: collections.deque[str] = collections.deque(maxlen=20)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._has_ended = False
        self._on_spawn: Callable[[], None] = lambda: None
        self._read_fields: dict[str, bool] = {}
        self._was_shared = False  # whether several requests were running when the child died
        self._thread = threading.Thread(target=self._run, name=f"gridq-model-{order.model}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """True while it takes requests. False as soon as it is being stopped."""
        return not self._has_ended and not self._is_stopping

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def measure_memory_mb(self) -> int:
        """Return its resident memory, 0 if it is not known."""
        return measure_resident_mb(self.pid)

    def start(self, context: StageContext, on_spawn: Callable[[], None] = lambda: None) -> None:
        """Start the child and wait until its model is loaded. `on_spawn` is called once the child runs.

        Raises ModelFileError if the file is no model, SeatDegraded if the engine cannot use the device,
        SeatMemoryShort if memory ran out, SeatUnavailable if the child dies or takes too long, and
        JobCancelled or StageTimeout if the stage is over. After an error the child is gone.
        """
        context.on_cancel(lambda: self._load_replies.put(_STOP))
        self._on_spawn = on_spawn
        self._thread.start()
        limit = LOAD_SECONDS + LOAD_SECONDS_PER_GB * _measure_file_gb(self.order.path)
        try:
            reply = self._load_replies.get(timeout=_compute_timeout(context, limit))
        except queue.Empty:
            reply = _STOP
        if isinstance(reply, dict) and "loaded" in reply:
            return
        self.kill()
        context.check()
        details = {"path": str(self.order.path), "model": self.order.model, "engine": self.order.engine}
        if reply is _STOP:
            if context.deadline is not None and time.monotonic() >= context.deadline:
                raise StageTimeout("The stage's time limit passed while its model was loading", details)
            raise SeatUnavailable(f"The model did not load within {limit:.0f} s", details)
        if reply is _GONE:
            reason = self._get_last_output()
            if OUT_OF_MEMORY.search(" ".join(self._stderr_lines)) or self._was_killed():
                raise self._make_memory_error({**details, "reason": reason or "the system killed it"})
            raise SeatUnavailable(
                "The engine's process died while it loaded the model", {**details, "reason": reason}
            )
        raise self._make_load_error(reply["failed"], details)

    def _make_load_error(self, failed: dict[str, str], details: dict[str, Json]) -> GridError:
        reason = " ".join(filter(None, (failed["reason"], self._get_last_output())))
        if OUT_OF_MEMORY.search(" ".join((failed["reason"], *self._stderr_lines))):
            return self._make_memory_error({**details, "reason": reason})
        if failed["kind"] == "model" and UNKNOWN_ARCHITECTURE.search(reason):
            return make_architecture_error(self.order, reason)
        if failed["kind"] == "model":
            return ModelFileError(
                f"The engine cannot load the file of the model {self.order.model!r}",
                {
                    **details,
                    "reason": reason,
                    "fix": "download the file again; it must be a complete GGUF model",
                },
            )
        if failed["kind"] == "device":
            fix = f"install a build of {self.order.engine} for this device"
            return SeatDegraded(
                "The engine cannot use the device",
                {**details, "state": "broken install", "reason": reason, "fix": fix},
            )
        return SeatUnavailable("The engine cannot load the model", {**details, "reason": reason})

    def _make_memory_error(self, details: dict[str, Json]) -> SeatMemoryShort:
        return SeatMemoryShort(
            f"Memory ran out while the model {self.order.model!r} was loading",
            {**details, "retry_after": MEMORY_RETRY_SECONDS, "fix": "end other programs that use the device"},
        )

    def _was_killed(self) -> bool:
        """Return whether somebody else killed the child: in want of memory, the system does."""
        return self._process is not None and self._process.returncode == -signal.SIGKILL

    def request(
        self, endpoint: str, body: dict[str, Json], context: StageContext
    ) -> Generator[dict[str, Json]]:
        """Send one request and yield the chunks of its answer as the engine makes them.

        Raises StageError if the request is wrong, ChildDied if the child dies, SeatUnavailable if the engine
        fails, hangs or is being closed, and JobCancelled or StageTimeout. Cancelling stops it within a
        second.
        """
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        request_id = next(self._request_ids)
        with self._lock:
            if not self.is_alive:
                raise SeatUnavailable(
                    "The model's process has ended", {"model": self.order.model, "retry_after": 0}
                )
            self._replies[request_id] = replies
        context.on_cancel(lambda: replies.put(_STOP))
        is_finished = False
        try:
            self._send({"id": request_id, "endpoint": endpoint, "body": body})
            while True:
                cpu_seconds = self._measure_cpu_seconds()
                try:
                    reply = replies.get(timeout=_compute_timeout(context, SILENCE_SECONDS))
                except queue.Empty:
                    if context.deadline is not None and time.monotonic() >= context.deadline:
                        raise StageTimeout("The model did not answer within the stage's time limit") from None
                    if not self._has_computed_since(cpu_seconds):
                        is_finished = True
                        self.kill()
                        raise self._make_hang_error() from None
                    continue
                context.check()
                if reply is _GONE:
                    is_finished = True
                    raise self._make_death_error()
                if "chunk" in reply:
                    yield reply["chunk"]
                    continue
                is_finished = True
                if "error" in reply:
                    raise self._make_request_error(reply["error"])
                return
        finally:
            if not is_finished:
                self._stop(request_id, replies)
            with self._lock:
                self._replies.pop(request_id, None)

    def reads_field(self, name: str, context: StageContext) -> bool:
        """Return whether the model's chat template reads a field of PROBES. Others leave it out silently.

        The first call finds out: two values lead to other prompts, so to another first token, or one is
        refused. Raises the errors of `request`, of StageError only StageTimeout.
        """
        if name not in self._read_fields:
            one, other = PROBES[name]
            try:
                length, logprob = self._probe(name, one, context)
                other_length, other_logprob = self._probe(name, other, context)
            except StageTimeout:
                raise  # the next call asks again
            except StageError:
                self._read_fields[name] = False
            else:
                differs = abs(logprob - other_logprob) > SAME_LOGPROB
                self._read_fields[name] = differs or length != other_length
        return self._read_fields[name]

    def _probe(self, name: str, value: Json, context: StageContext) -> tuple[int, float]:
        """Return the length of the prompt in tokens, and the log probability of the first token after it."""
        length, logprob = 0, 0.0
        for chunk in self.request("chat/completions", {**PROBE, name: value}, context):
            length = max(length, (chunk.get("usage") or {}).get("prompt_tokens", 0))
            for choice in chunk.get("choices") or ():
                for token in (choice.get("logprobs") or {}).get("content") or ():
                    logprob = token["logprob"]
        return length, logprob

    def _stop(self, request_id: int, replies: queue.SimpleQueue[Any]) -> None:
        """Stop one generation. If it does not stop, kill the child, unless it runs other requests."""
        self._send({"cancel": request_id})
        deadline = time.monotonic() + STOP_SECONDS
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                reply = replies.get(timeout=remaining)
            except queue.Empty:
                break
            if reply is _GONE or (reply is not _STOP and "chunk" not in reply):
                return
        with self._lock:
            is_alone = set(self._replies) <= {request_id}
        if is_alone:
            self.kill()

    def _make_request_error(self, error: dict[str, str]) -> GridError:
        details = {"model": self.order.model, "reason": error["reason"]}
        if error["kind"] == "request":
            return StageError(f"The engine rejected the request: {error['reason']}", details)
        return SeatUnavailable("The engine failed", details)

    def _measure_cpu_seconds(self) -> float | None:
        return measure_cpu_seconds(self.pid) if self.pid else None

    def _has_computed_since(self, before: float | None) -> bool:
        """Return whether the child works, SILENCE_SECONDS after it had computed `before` seconds. Where the
        system does not tell, only the stage's time limit ends it.
        """
        now = self._measure_cpu_seconds()
        return before is None or now is None or now - before >= MIN_CPU_SHARE * SILENCE_SECONDS

    def _make_hang_error(self) -> SeatUnavailable:
        details: dict[str, Json] = {"model": self.order.model, "reason": self._get_last_output()}
        return SeatUnavailable(f"The model's process hung for {SILENCE_SECONDS:.0f} s and was ended", details)

    def _make_death_error(self) -> GridError:
        details: dict[str, Any] = {"model": self.order.model, "reason": self._get_last_output()}
        if self._is_stopping:
            return SeatUnavailable("The model's process was stopped", {**details, "retry_after": 0})
        code = self._process.returncode if self._process else None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        details["alone"] = not self._was_shared
        return ChildDied(f"The model's process died during the stage ({how})", details)

    def _get_last_output(self) -> str:
        return " ".join(self._stderr_lines)[-400:]

    def close(self) -> None:
        """Ask the child to end, kill it if it does not, and wait until its memory is free."""
        with self._lock:
            self._is_stopping = True
        self._messages.put(None)  # the child exits at the end of its input
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the child and its process group, and wait until it is gone."""
        with self._lock:
            self._is_stopping = True
        process = self._process
        if process is not None and not self._has_ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _send(self, message: dict[str, Json]) -> None:
        self._messages.put(json.dumps(message).encode() + b"\n")

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        """Write messages until the end of the input, or of the child: the reading side reports its death."""
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            for message in iter(self._messages.get, None):
                process.stdin.write(message)
                process.stdin.flush()
        with contextlib.suppress(OSError):  # what it did not read
            process.stdin.close()

    def _run(self) -> None:
        """Start the child, dispatch its replies, and notify all waiting requests when it has ended."""
        try:
            process = self._spawn()
        except OSError as exc:
            self._stderr_lines.append(f"{type(exc).__name__}: {exc}")
            process = None
        if process is not None:
            stderr_reader = threading.Thread(target=self._read_stderr, args=(process,), daemon=True)
            writer = threading.Thread(target=self._write, args=(process,), daemon=True)
            stderr_reader.start()
            writer.start()
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # half a line: it was killed while it wrote
                    self._dispatch(json.loads(line))
            process.wait()
            self._messages.put(None)
            stderr_reader.join(1)
            writer.join(1)
            process.stdout.close()
        with self._lock:
            self._has_ended = True
            pending = list(self._replies.values())
            self._was_shared = len(pending) > 1
        for replies in (self._load_replies, *pending):
            replies.put(_GONE)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_stopping:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.profiles.gpu.engine_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=make_child_environment(self.order.devices),
                start_new_session=True,
            )
            self._process = process
        self._on_spawn()
        self._send(self.order.to_message(self._scratch))
        return process

    def _dispatch(self, reply: dict[str, Json]) -> None:
        if "id" not in reply:
            self._load_replies.put(reply)
            return
        with self._lock:
            replies = self._replies.get(reply["id"])
        if replies is not None:
            replies.put(reply)

    def _read_stderr(self, process: subprocess.Popen[bytes]) -> None:
        """Keep the last lines of the child's stderr. Engines log only errors there, no prompts."""
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._stderr_lines.append(line.decode("utf-8", "replace").strip())


def _measure_file_gb(path: Path) -> float:
    """Return the size of a file in GB (2**30 bytes), 0 if it is not there: the load says so."""
    try:
        return path.stat().st_size / 2**30
    except OSError:
        return 0.0


def _compute_timeout(context: StageContext, max_seconds: float | None = None) -> float | None:
    """Return the seconds until the stage's deadline, at most `max_seconds`. None means no limit."""
    if context.deadline is None:
        return max_seconds
    remaining = max(0.0, context.deadline - time.monotonic())
    return remaining if max_seconds is None else min(remaining, max_seconds)
