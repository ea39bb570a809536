"""A fake server of OpenAI's Responses. The name of the model selects its behavior."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_server import Handler, ModelServer

KEY = "sk-test-0123456789"
LONG = 10_000_000
"""Bytes in the answer of the model `long`."""


class ResponsesServer(ModelServer):
    """Use `with ResponsesServer() as server`. `server.url` is the base URL.

    Models: `echo` repeats the words of the last user message, one event per word; `slow` never ends; `long`
    sends ten million bytes; `empty` ends without text; `reasoning` thinks first; `tools` calls a function;
    `silent` takes the request and sends nothing; `status-<n>` rejects (with `refusal_headers`); `poor` has
    no credit, `spent` is a subscription that is used up until `resets_at`, `unknown` does not exist; `cut`
    breaks off after a word, `cut-first` before one; `failed` ends in a `response.failed`. As OpenAI does, it
    rejects items of reasoning without `encrypted_content` if `store` is false.
    """

    def __init__(self, key: str = KEY) -> None:
        super().__init__(_handler(self), key)
        self.refusal_headers: dict[str, str] = {}
        self.resets_at = 1764345600


CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def error(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 429 else "server_error" if status > 429 else "requests"
    body = {"message": message, "type": kind, "param": None, "code": code or CODES.get(status)}
    return {"error": body}


def last_words(body: dict[str, Any]) -> str:
    """Return the text of the last user message in a request's `input`."""
    given = body["input"]
    if isinstance(given, str):
        return given
    content = next(item["content"] for item in reversed(given) if item.get("role") == "user")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def unencrypted(body: dict[str, Any]) -> str:
    """Return the id of an item of reasoning in `input` that only a stored response would explain, else ""."""
    items = body["input"] if isinstance(body["input"], list) else []
    lost = (item for item in items if item.get("type") == "reasoning" and not item.get("encrypted_content"))
    return str(next(lost, {"id": ""})["id"])


def response(body: dict[str, Any], items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1764288000,
        "status": status,
        "model": "the-real-name",
        "output": items,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }
    if status == "completed":
        answer["usage"] = {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 10,
        }
    return answer


def _handler(state: ResponsesServer) -> type[Handler]:
    class Responses(Handler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != f"Bearer {state.key}":
                self.answer(401, error(401, "Incorrect API key provided"))
            elif self.path == "/v1/responses":  # WebSocket is refused, so clients use HTTP
                self.answer(426, error(426, "Upgrade Required"))
            elif self.path.partition("?")[0] == "/v1/models":
                self.answer(200, {"object": "list", "data": [{"id": "echo", "object": "model"}]})
            else:
                self.answer(404, error(404, self.path))

        def do_POST(self) -> None:
            body = state.take(self)
            model = body["model"]
            if self.headers.get("Authorization") != f"Bearer {state.key}":
                self.answer(401, error(401, "Incorrect API key provided: sk-xx"))
            elif self.path != "/v1/responses":
                self.answer(404, error(404, self.path))
            elif model == "poor":
                words = "You exceeded your current quota, please check your plan and billing details."
                self.answer(429, error(429, words, "insufficient_quota"))
            elif model == "spent":
                details = {"type": "usage_limit_reached", "message": "The usage limit has been reached"}
                self.answer(429, {"error": {**details, "plan_type": "plus", "resets_at": state.resets_at}})
            elif model == "unknown":
                self.answer(404, error(404, f"The model `{model}` does not exist or you do not have access."))
            elif model.startswith("status-"):
                status = int(model.removeprefix("status-"))
                self.answer(status, error(status, f"refused with {status}"), state.refusal_headers)
            elif model == "silent":
                state.keep_silent(self)
            elif body.get("store") is False and (lost := unencrypted(body)):
                words = f"Item with id '{lost}' not found. Items are not persisted when `store` is false."
                self.answer(404, error(404, words))
            elif body.get("stream"):
                self._stream(body)
            else:
                answer = list(self._events(body))[-1]["response"]
                if model == "echo":
                    answer["output"] = [self._message(last_words(body))]
                self.answer(200, answer)

        def _message(self, text: str, status: str = "completed") -> dict[str, Any]:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            content = [part] if text else []
            return {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            }

        def _words(self, body: dict[str, Any]) -> Iterator[str]:
            model = body["model"]
            if model == "long":
                yield from ["ten bytes " * 10_000] * (LONG // 100_000)
                return
            while model == "slow" and not state.stopping.is_set():
                yield "on "
                time.sleep(0.02)
            for word in last_words(body).split():
                yield word + " "

        def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
            model = body["model"]
            yield {"type": "response.created", "response": response(body, [], "in_progress")}
            items: list[dict[str, Any]] = []
            if model == "failed":
                details = {"code": "server_error", "message": "the engine fell over"}
                yield {
                    "type": "response.failed",
                    "response": {**response(body, [], "failed"), "error": details},
                }
                return
            if model == "reasoning":
                thought = {"type": "summary_text", "text": "let me see"}
                items.append({"id": "rs_1", "type": "reasoning", "summary": [thought]})
                if "reasoning.encrypted_content" in (body.get("include") or ()):
                    items[0]["encrypted_content"] = "gAAAAAB-sealed"
                yield {"type": "response.output_item.added", "output_index": 0, "item": items[0]}
                yield {"type": "response.output_item.done", "output_index": 0, "item": items[0]}
            if model == "tools":
                call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "weather"}
                items.append({**call, "arguments": '{"city":"Bern"}', "status": "completed"})
                yield {"type": "response.output_item.added", "output_index": 0, "item": items[0]}
                yield {"type": "response.output_item.done", "output_index": 0, "item": items[0]}
            elif model != "empty":
                yield from self._message_events(body, items)
                if model in ("cut", "cut-first"):
                    return
            yield {"type": "response.completed", "response": response(body, items, "completed")}

        def _message_events(
            self, body: dict[str, Any], items: list[dict[str, Any]]
        ) -> Iterator[dict[str, Any]]:
            """Yield the events of a message, and add it to `items`."""
            model, index, words = body["model"], len(items), []
            where = {"item_id": "msg_1", "output_index": index, "content_index": 0}
            begun = self._message("", "in_progress")
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield {"type": "response.output_item.added", "output_index": index, "item": begun}
            if model == "cut-first":
                return
            yield {"type": "response.content_part.added", **where, "part": part}
            for word in self._words(body):
                words.append(word)
                yield {"type": "response.output_text.delta", **where, "delta": word, "logprobs": []}
                if model == "cut":
                    return
            text = "".join(words)
            yield {"type": "response.output_text.done", **where, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **where, "part": {**part, "text": text}}
            items.append(self._message(text))
            yield {"type": "response.output_item.done", "output_index": index, "item": items[-1]}

        def _stream(self, body: dict[str, Any]) -> None:
            self.begin_stream()
            try:
                for number, event in enumerate(self._events(body)):
                    data = json.dumps({**event, "sequence_number": number})
                    self.chunk(f"event: {event['type']}\ndata: {data}\n\n".encode())
                if event["type"] in ("response.completed", "response.failed"):
                    self.chunk(b"")
                    return
            except (BrokenPipeError, ConnectionResetError):
                state.disconnected.set()
            self.close_connection = True

    return Responses
