"""A fake server of the OpenAI API format. The name of the model selects its behavior, errors included."""

from __future__ import annotations

import base64
import json
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_server import Handler, ModelServer

KEY = "sk-test-0123456789"


class OpenAIServer(ModelServer):
    """Use `with OpenAIServer() as server`. `server.url` is the base URL.

    Models: `echo` repeats the words of the last message, one piece per word, `paced` with 10 ms between them,
    `pausing` with 700; `held` sends the first and, once `go_on` is set, the others; `vast` repeats each word
    1,000 times; `slow` never ends, nor does `metered`, which states its usage so far; `silent` takes the
    request and sends nothing; `status-<n>` rejects (with `retry_after`), `status-<n>-<code>-<param>` with a
    code and a field; `cut` breaks off after two pieces, `cut-first` before one; `malformed` sends no JSON;
    `error-event` and `error-late` put an error into the stream; `ragged` sends its bytes in odd chunks;
    `whole` ignores `stream`; `tools` calls a function, `agent` calls `call` and then repeats its result;
    `reasoning` thinks first; `unmetered` states no usage;
    `packs` returns vectors as base64. `called` is the model that its answers state, `listed` its list of
    models.
    """

    def __init__(self, key: str | None = None, called: str = "the-real-name") -> None:
        super().__init__(_handler(self), key)
        self.called = called
        self.retry_after: str | None = None
        self.listed: list[dict[str, Any]] = [{"id": "echo"}, {"id": "other"}]
        self.connections: set[tuple[str, int]] = set()
        self.go_on = threading.Event()
        self.call = CALL["function"]
        """The function that `agent` calls."""


def chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    if content is not None:
        delta["content"] = content
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1764288000,
        "model": "the-real-name",
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def logprobs(word: str) -> dict[str, Any]:
    return {"content": [{"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": []}]}


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}


def usage(tokens_in: int, tokens_out: int) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }


def _handler(state: OpenAIServer) -> type[Handler]:
    class OpenAI(Handler):
        def do_GET(self) -> None:
            if self.path != "/v1/models":
                self.answer(404, {"error": {"message": f"Invalid URL (GET {self.path})"}})
            elif self._authorised():
                self.answer(200, {"object": "list", "data": state.listed})

        def do_POST(self) -> None:
            state.connections.add(self.client_address)
            body = state.take(self)
            if not self._authorised():
                return
            model = body["model"]
            if model.startswith("status-"):
                self._refuse(int(model.split("-")[1]), *model.split("-")[2:])
            elif model == "silent":
                state.keep_silent(self)
            elif self.path.endswith("/embeddings"):
                self._embed(body)
            elif body.get("stream") and model != "whole":
                self._stream(body)
            else:
                self._answer(body)

        def _authorised(self) -> bool:
            if state.key is None or self.headers.get("Authorization") == f"Bearer {state.key}":
                return True
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            self.answer(401, {"error": {"message": f"Incorrect API key provided: {given}"}})
            return False

        def _refuse(self, status: int, code: str = "", param: str | None = None) -> None:
            headers = {"Retry-After": state.retry_after} if state.retry_after else {}
            if 300 <= status < 400:
                headers["Location"] = "https://elsewhere.invalid/v1"
            kind = {429: "requests"}.get(status, "invalid_request_error" if status < 500 else "server_error")
            error = {"message": f"refused with {status}", "type": kind, "code": code, "param": param}
            self.answer(status, {"error": error}, headers)

        def _words(self, body: dict[str, Any]) -> list[str]:
            text = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
            if isinstance(text, list):
                text = text[0]["text"]
            times = 1000 if body["model"] == "vast" else 1
            return [word * times + " " for word in text.split()]

        def _calls_function(self, body: dict[str, Any]) -> bool:
            model = body["model"]
            return model == "tools" or (model == "agent" and body["messages"][-1]["role"] != "tool")

        def _answer(self, body: dict[str, Any]) -> None:
            words = self._words(body)
            text = "".join(words)
            if body["model"] == "malformed":
                self.answer(200, b"<html>hello</html>")
                return
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
            answer = {"id": "chatcmpl-1", "created": 1764288000, "model": state.called}
            if self.path.endswith("/chat/completions"):
                answer["object"] = "chat.completion"
                choice["message"] = {"role": "assistant", "content": text}
            else:
                answer["object"] = "text_completion"
                choice["text"] = text
            if self._calls_function(body):
                choice = {"index": 0, "finish_reason": "tool_calls"}
                call = {**CALL, "function": state.call}
                choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
            if body["model"] != "unmetered":
                answer["usage"] = usage(len(words), len(words))
            choices = [{**choice, "index": index} for index in range(body.get("n", 1))]
            self.answer(200, {**answer, "choices": choices})

        def _embed(self, body: dict[str, Any]) -> None:
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            data: list[dict[str, Any]] = [
                {"index": i, "embedding": [float(len(t)), 1.0]} for i, t in enumerate(texts)
            ]
            if body["model"] == "packs":
                for item in data:
                    item["embedding"] = base64.b64encode(struct.pack("<2f", *item["embedding"])).decode()
            used = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
            self.answer(200, {"data": data[::-1], "usage": used})

        def _stream(self, body: dict[str, Any]) -> None:
            self.begin_stream()
            model = body["model"]
            if model == "cut-first":
                self.close_connection = True
                return
            try:
                if model == "ragged":
                    self._ragged(body)
                else:
                    for event in self._events(body):
                        data = (
                            event if isinstance(event, str) else json.dumps({**event, "model": state.called})
                        )
                        self.chunk(f"data: {data}\n\n".encode())
                        if model == "cut" and isinstance(event, dict) and event.get("last"):
                            self.close_connection = True
                            return
                self.chunk(b"")
            except (BrokenPipeError, ConnectionResetError):
                state.disconnected.set()
                self.close_connection = True

        def _events(self, body: dict[str, Any]) -> Iterator[Any]:
            model, words = body["model"], self._words(body)
            yield chunk(role="assistant")
            if model == "malformed":
                yield "{not json"
            if model == "error-event":
                yield {"error": {"message": "model overloaded", "type": "server_error"}}
            if self._calls_function(body):
                call = {"index": 0, "id": "call_1", "type": "function"}
                name, arguments = state.call["name"], state.call["arguments"]
                yield chunk(tool_calls=[{**call, "function": {"name": name, "arguments": ""}}])
                yield chunk(tool_calls=[{"index": 0, "function": {"arguments": arguments[:8]}}])
                yield chunk(tool_calls=[{"index": 0, "function": {"arguments": arguments[8:]}}])
                yield chunk(finish="tool_calls")
                yield "[DONE]"
                return
            if model == "reasoning":
                yield chunk(reasoning_content="let me ")
                yield chunk(reasoning_content="see")
            count = 0
            while model in ("slow", "metered") and not state.stopping.is_set():
                count += 1
                yield chunk("on ") | ({"usage": usage(100, count)} if model == "metered" else {})
                time.sleep(0.02)
            if model == "cut":
                yield chunk("one ")
                yield {**chunk("two "), "last": True}
            for number, word in enumerate(words):
                if model == "held" and number == 1:
                    state.go_on.wait(60)
                time.sleep({"paced": 0.01, "pausing": 0.7}.get(model, 0))
                for index in range(body.get("n", 1)):
                    piece = chunk(word)
                    piece["choices"][0] |= {"index": index, "logprobs": logprobs(word)}
                    yield piece
                if model == "error-late":
                    yield {"error": {"message": "engine fell over", "code": 500}}
            for index in range(body.get("n", 1)):
                last = chunk(finish="stop")
                last["choices"][0]["index"] = index
                yield last
            if body.get("stream_options", {}).get("include_usage") and model != "unmetered":
                yield {**chunk(), "choices": [], "usage": usage(len(words), len(words))}
            yield "[DONE]"

        def _ragged(self, body: dict[str, Any]) -> None:
            raw = ": ping\r\n\r\n" + "".join(
                f"event: message\r\ndata: {json.dumps(chunk(word), ensure_ascii=False)}\r\n\r\n"
                for word in self._words(body)
            )
            raw += f"data:{json.dumps(chunk(finish='stop'))}\r\n\r\ndata: [DONE]\r\n\r\n"
            for start in range(0, len(raw.encode()), 7):
                self.chunk(raw.encode()[start : start + 7])

    return OpenAI
