"""The child process that holds one loaded model: `python -m workers.profiles.gpu.engine_process`.

It reads JSON lines from stdin and writes JSON lines to stdout. The first line it reads is the order,
`{"engine", "path", "context", "concurrency", "threads", "gpu_layers", "embeddings", "scratch", "parent"}`; it
answers `{"loaded": true}` or `{"failed": {"kind", "reason"}}`. Then requests, `{"id", "endpoint", "body"}`,
and `{"cancel": id}`; each request is answered by chunks, `{"id", "chunk"}`, and one `{"id", "done": true}` or
`{"id", "error": {"kind", "reason"}}`.

It ends when stdin ends, so it never outlives its parent; on Linux the kernel kills it with the parent as
well.
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

from workers.profiles.gpu import engines
from workers.profiles.gpu.engines.base import BadRequest, Engine, EngineError, NoDevice, NotAModel

PR_SET_PDEATHSIG = 1
KEPT = ("choices", "usage", "data")
"""The parts of an engine's answer that are handed on."""


class Replies:
    """The pipe to the parent: whole lines, one writer at a time."""

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
                os._exit(0)  # nobody reads any more


def main() -> None:
    """Load the ordered model and serve it until stdin ends."""
    _die_with_parent()
    replies = Replies(os.dup(1))
    os.dup2(2, 1)  # what a native library prints must not fall into the protocol
    if sys.argv[1:2] == ["--backends"]:
        replies.send(backends=engines.make(sys.argv[2]).backends())
        return
    order = json.loads(sys.stdin.buffer.readline() or b"null")
    if order is None or (order["parent"] != os.getppid() and sys.platform == "linux"):
        os._exit(0)  # the parent died before the kernel was told to take us along
    engine = _load(order, replies)
    if engine is not None:
        _serve(engine, replies)
    os._exit(0)  # no clean-up of a library can hang it


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _load(order: dict[str, Any], replies: Replies) -> Engine | None:
    try:
        engine = engines.make(order["engine"])
        engine.load(
            order["path"],
            context=order["context"],
            concurrency=order["concurrency"],
            threads=order["threads"],
            gpu_layers=order["gpu_layers"],
            embeddings=order["embeddings"],
            scratch=order["scratch"],
        )
    except NotAModel as exc:
        replies.send(failed={"kind": "model", "reason": str(exc)})
    except NoDevice as exc:
        replies.send(failed={"kind": "device", "reason": str(exc)})
    except (EngineError, ImportError, OSError) as exc:
        replies.send(failed={"kind": "engine", "reason": f"{type(exc).__name__}: {exc}"})
    else:
        # nobody needs what is there: the socket is closed to all, and a killed parent leaves no litter
        shutil.rmtree(order["scratch"], ignore_errors=True)
        replies.send(loaded=True)
        return engine
    return None


def _serve(engine: Engine, replies: Replies) -> None:
    cancelled: dict[int, threading.Event] = {}
    for line in sys.stdin.buffer:
        told = json.loads(line)
        if "cancel" in told:
            event = cancelled.get(told["cancel"])
            if event is not None:
                event.set()
            continue
        event = cancelled[told["id"]] = threading.Event()
        arguments = (engine, told, event, replies, cancelled)
        threading.Thread(target=_answer, args=arguments, daemon=True).start()


def _answer(
    engine: Engine,
    told: dict[str, Any],
    stop: threading.Event,
    replies: Replies,
    cancelled: dict[int, threading.Event],
) -> None:
    number = told["id"]

    def take(chunk: dict[str, Any]) -> bool:
        if not stop.is_set():
            replies.send(id=number, chunk={key: chunk[key] for key in KEPT if key in chunk})
        return stop.is_set()

    try:
        if told["endpoint"] == "embeddings":
            take(engine.embed(told["body"]))
        else:
            engine.generate(told["endpoint"], told["body"], take)
    except BadRequest as exc:
        replies.send(id=number, error={"kind": "request", "reason": str(exc)})
    except Exception as exc:  # whatever an engine raises is its fault and must reach the one who waits
        replies.send(id=number, error={"kind": "engine", "reason": f"{type(exc).__name__}: {exc}"})
    else:
        replies.send(id=number, done=True)
    finally:
        cancelled.pop(number, None)


if __name__ == "__main__":
    main()
