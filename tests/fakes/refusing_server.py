"""A small endpoint of the OpenAI API format that refuses what a test says."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.fakes.http_server import Handler, ModelServer
from tests.fakes.openai_server import chunk, usage


class RefusingServer(ModelServer):
    """Answers each chat, unless its key is not `key` (if that is set), or `refusals[model]` is a status and a
    body. `calls` are the models of all requests. While `gate` is not set, answers wait, and streams do after
    their first word.
    """

    def __init__(self, key: str | None = None) -> None:
        super().__init__(_make_handler(self), key)
        self.refusals: dict[str, tuple[int, Any]] = {}
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()


def _make_handler(state: RefusingServer) -> type[Handler]:
    class Chat(Handler):
        def do_POST(self) -> None:
            body = state.take(self)
            model = body["model"]
            state.calls.append(model)
            if state.key is not None and self.headers.get("Authorization") != f"Bearer {state.key}":
                self.answer(401, {"error": {"message": "Incorrect API key provided: it is old"}})
                return
            if model in state.refusals:
                status, body = state.refusals[model]
                self.answer(status, body)
                return
            if body.get("stream"):
                self._stream(model)
                return
            state.gate.wait(10)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
            answer = {"id": "c", "object": "chat.completion", "created": 1, "model": model}
            self.answer(200, {**answer, "choices": [choice], "usage": usage(1, 1)})

        def _stream(self, model: str) -> None:
            self.begin_stream()
            for content, finish in (("hi", None), ("", "stop")):
                self.chunk(b"data: " + json.dumps(chunk(content, finish)).encode() + b"\n\n")
                state.gate.wait(10)
            self.chunk(b"data: [DONE]\n\n")
            self.chunk(b"")

    return Chat
