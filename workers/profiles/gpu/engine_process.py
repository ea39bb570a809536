"""The child process that holds one loaded model: `python -m workers.profiles.gpu.engine_process`.

It reads JSON lines from stdin and writes JSON lines to stdout. The first line is the order to load a model,
`{"engine", "path", "context", "concurrency", "threads", "gpu_layers", "embeddings", "kv_type",
"prompt_cache_mb", "scratch", "parent"}`. The answer is `{"loaded": true}` or `{"failed": {"kind",
"reason"}}`. Then it takes requests, `{"id", "endpoint", "body"}`, and `{"cancel": id}`. It answers each with
chunks, `{"id", "chunk"}`, and a last line, `{"id", "done": true}` or `{"id", "error": {"kind", "reason"}}`.
With `--dry-run` the engine only prints to stderr what it would allocate, which `memory.dry_run` reads.

It ends when stdin ends, so it never outlives its parent. On Linux the kernel also kills it with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from typing import Any

from workers.profiles.gpu.engines import selection
from workers.profiles.gpu.engines.base import BadRequest, Engine, EngineError, NoDevice, NotAModel
from workers.profiles.gpu.model_files.file_use import hold_file

PR_SET_PDEATHSIG = 1
ANSWER_FIELDS = ("choices", "usage", "data")
"""The fields of an engine's answer that go to the parent."""

LOAD_OPTIONS = (
    "context",
    "concurrency",
    "threads",
    "gpu_layers",
    "embeddings",
    "kv_type",
    "prompt_cache_mb",
)
"""The fields of the order that a load and its dry run have in common."""


class Replies:
    """The pipe to the parent. Writes complete lines, one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._lock = threading.Lock()

    def send(self, **reply: Any) -> None:
        line = json.dumps(reply, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[self._file.write(line) or 0 :]
            except OSError:
                os._exit(0)  # the parent has closed the pipe


def main() -> None:
    """Load the ordered model and serve it until stdin ends."""
    _request_death_with_parent()
    replies = Replies(os.dup(1))
    os.dup2(2, 1)  # keep the output of native libraries out of the protocol
    if sys.argv[1:2] == ["--backends"]:
        replies.send(backends=selection.create_engine(sys.argv[2]).list_backends())
        return
    order = json.loads(sys.stdin.buffer.readline() or b"null")
    if order is None or (order["parent"] != os.getppid() and sys.platform == "linux"):
        os._exit(0)  # the parent died before prctl was called
    if sys.argv[1:2] == ["--dry-run"]:
        selection.create_engine(order["engine"]).dry_run(order["path"], **_get_options(order))
        return
    engine = _load(order, replies)
    if engine is not None:
        _serve(engine, replies)
    os._exit(0)  # so that the cleanup of a library cannot hang it


def _request_death_with_parent() -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _get_options(order: dict[str, Any]) -> dict[str, Any]:
    return {name: order[name] for name in LOAD_OPTIONS}


def _load(order: dict[str, Any], replies: Replies) -> Engine | None:
    try:
        engine = selection.create_engine(order["engine"])
        with contextlib.suppress(OSError):  # the engine reports a file that is not there
            hold_file(order["path"])  # until this process ends
        engine.load(order["path"], **_get_options(order), scratch=order["scratch"])
    except NotAModel as exc:
        replies.send(failed={"kind": "model", "reason": str(exc)})
    except NoDevice as exc:
        replies.send(failed={"kind": "device", "reason": str(exc)})
    except (EngineError, ImportError, OSError) as exc:
        replies.send(failed={"kind": "engine", "reason": f"{type(exc).__name__}: {exc}"})
    else:
        # not needed after loading; removed here so that a killed parent leaves nothing behind
        shutil.rmtree(order["scratch"], ignore_errors=True)
        replies.send(loaded=True)
        return engine
    return None


def _serve(engine: Engine, replies: Replies) -> None:
    cancelled: dict[int, threading.Event] = {}
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "cancel" in message:
            event = cancelled.get(message["cancel"])
            if event is not None:
                event.set()
            continue
        event = cancelled[message["id"]] = threading.Event()
        arguments = (engine, message, event, replies, cancelled)
        threading.Thread(target=_answer, args=arguments, daemon=True).start()


def _answer(
    engine: Engine,
    request: dict[str, Any],
    stop: threading.Event,
    replies: Replies,
    cancelled: dict[int, threading.Event],
) -> None:
    request_id = request["id"]

    def send_chunk(chunk: dict[str, Any]) -> bool:
        if not stop.is_set():
            replies.send(id=request_id, chunk={key: chunk[key] for key in ANSWER_FIELDS if key in chunk})
        return stop.is_set()

    try:
        if request["endpoint"] == "embeddings":
            send_chunk(engine.embed(request["body"]))
        else:
            engine.generate(request["endpoint"], request["body"], send_chunk)
    except BadRequest as exc:
        replies.send(id=request_id, error={"kind": "request", "reason": str(exc)})
    except Exception as exc:  # the waiting request must get any error of an engine
        replies.send(id=request_id, error={"kind": "engine", "reason": f"{type(exc).__name__}: {exc}"})
    else:
        replies.send(id=request_id, done=True)
    finally:
        cancelled.pop(request_id, None)


if __name__ == "__main__":
    main()
