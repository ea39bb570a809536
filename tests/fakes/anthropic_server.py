"""A fake server of Anthropic's Messages. The name of the model selects its behavior."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_server import Handler, ModelServer

KEY = "sk-ant-test-0123456789"
VERSION = "2023-06-01"
LONG = 10_000_000
"""Bytes in the answer of the model `long`."""


class AnthropicServer(ModelServer):
    """Use `with AnthropicServer() as server`. `server.url` is the base URL.

    Models: `echo` repeats the words of the last message, one event per word; `tools` calls a function;
    `thinking` thinks first; `silent` sends nothing; `slow` never ends, `long` sends 10,000,000 bytes, `empty`
    ends without text; `status-<n>` rejects (with `refusal_headers`); `poor` has no credit, `unknown` does not
    exist; `cut` breaks off after a word, `cut-first` before one; `error-event` and `error-late` put an error
    into the stream.
    """

    def __init__(self, key: str = KEY) -> None:
        super().__init__(_handler(self), key)
        self.refusal_headers: dict[str, str] = {}


TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def error(status: int, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": TYPES.get(status, "api_error"), "message": message}}


def _handler(state: AnthropicServer) -> type[Handler]:
    class Anthropic(Handler):
        def do_GET(self) -> None:
            listed = {"type": "model", "id": "echo", "max_tokens": 128_000}
            if self.headers.get("x-api-key") == state.key and self.path == "/v1/models/echo":
                self.answer(200, listed)
                return
            if self.headers.get("x-api-key") != state.key or self.path != "/v1/models?limit=1000":
                self.answer(404, error(404, self.path))
                return
            self.answer(200, {"data": [{"type": "model", "id": "echo"}], "has_more": False})

        def do_POST(self) -> None:
            body = state.take(self)
            model = body["model"]
            bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")  # of a subscription
            if state.key not in (self.headers.get("x-api-key"), bearer):
                self.answer(401, error(401, f"invalid x-api-key {self.headers.get('x-api-key')}"))
            elif self.headers.get("anthropic-version") != VERSION:
                self.answer(400, error(400, "anthropic-version: header is required"))
            elif model == "poor":
                self.answer(400, error(400, "Your credit balance is too low to access the Anthropic API."))
            elif model == "unknown":
                self.answer(404, error(404, f"model: {model}"))
            elif model.startswith("status-"):
                status = int(model.removeprefix("status-"))
                self.answer(status, error(status, f"refused with {status}"), state.refusal_headers)
            elif self.path.startswith("/v1/messages/count_tokens"):
                self.answer(200, {"input_tokens": 5})
            elif model == "silent":
                state.keep_silent(self)
            elif body.get("stream"):
                self._stream(body)
            else:
                self.answer(200, self._message(body))

        def _blocks(self, body: dict[str, Any]) -> list[dict[str, Any]]:
            content = next(
                message["content"] for message in reversed(body["messages"]) if message["role"] == "user"
            )
            if isinstance(content, list):
                content = "".join(block.get("text", "") for block in content)
            blocks: list[dict[str, Any]] = []
            if body["model"] == "empty":
                return blocks
            if body["model"] == "long":
                content = "ten bytes " * (LONG // 10)
            if body["model"] == "thinking":
                blocks.append({"type": "thinking", "thinking": "let me see", "signature": "sig"})
            if body["model"] == "tools":
                call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}
                return [*blocks, {"type": "text", "text": "I look"}, call]
            return [*blocks, {"type": "text", "text": content}]

        def _message(self, body: dict[str, Any]) -> dict[str, Any]:
            blocks = self._blocks(body)
            called = any(block["type"] == "tool_use" for block in blocks)
            used = {"input_tokens": 5, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 0}
            return {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "the-real-name",
                "content": blocks,
                "stop_reason": "tool_use" if called else "end_turn",
                "stop_sequence": None,
                "usage": {**used, "output_tokens": 3},
            }

        def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
            model, whole = body["model"], self._message(body)
            begun = {
                **whole,
                "content": [],
                "stop_reason": None,
                "usage": {**whole["usage"], "output_tokens": 1},
            }
            yield {"type": "message_start", "message": begun}
            yield {"type": "ping"}
            if model == "error-event":
                yield error(529, "Overloaded")
            for index, block in enumerate(whole["content"]):
                start: dict[str, dict[str, Any]] = {
                    "text": {"text": ""},
                    "thinking": {"thinking": "", "signature": ""},
                    "tool_use": {"input": {}},
                }
                opened = {**block, **start[block["type"]]}
                yield {"type": "content_block_start", "index": index, "content_block": opened}
                if model == "cut-first":
                    return
                while model == "slow" and not state.stopping.is_set():
                    delta = {"type": "text_delta", "text": "on "}
                    yield {"type": "content_block_delta", "index": index, "delta": delta}
                    time.sleep(0.02)
                for delta in self._deltas(block):
                    yield {"type": "content_block_delta", "index": index, "delta": delta}
                    if model == "cut":
                        return
                    if model == "error-late":
                        yield error(529, "Overloaded")
                yield {"type": "content_block_stop", "index": index}
            stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
            yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 3}}
            yield {"type": "message_stop"}

        def _deltas(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
            if block["type"] == "tool_use":
                text = json.dumps(block["input"])
                for part in ("", text[:5], text[5:]):
                    yield {"type": "input_json_delta", "partial_json": part}
            elif block["type"] == "thinking":
                yield {"type": "thinking_delta", "thinking": block["thinking"]}
                yield {"type": "signature_delta", "signature": block["signature"]}
            elif len(block["text"]) == LONG:
                for start in range(0, LONG, 100_000):
                    yield {"type": "text_delta", "text": block["text"][start : start + 100_000]}
            else:
                for word in block["text"].split():
                    yield {"type": "text_delta", "text": word + " "}

        def _stream(self, body: dict[str, Any]) -> None:
            self.begin_stream()
            try:
                for event in self._events(body):
                    self.chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                if event["type"] == "message_stop":
                    self.chunk(b"")
                    return
            except (BrokenPipeError, ConnectionResetError):
                state.disconnected.set()
            self.close_connection = True

    return Anthropic
