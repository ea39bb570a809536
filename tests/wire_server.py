"""A small OpenAI-compatible server that behaves as the request's model name says, errors included."""

from __future__ import annotations

import base64
import json
import select
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-0123456789"


class WireServer:
    """Start it with `with WireServer() as server`; `server.url` is the base URL.

    Models: `echo` says the last message's words back, one piece a word, `paced` with 10 ms between them,
    `pausing` with 700; `slow` goes on for ever, `metered` too and says what it has used so far; `silent`
    takes the request and says nothing; `status-<n>` refuses (with `retry_after`);
    `cut` breaks off after two pieces, `cut-first` before one; `malformed` sends what is
    not JSON; `error-event` and `error-late` put an error into the stream; `ragged` sends its bytes in odd
    lumps; `whole` ignores `stream`; `tools` calls a function; `reasoning` thinks first; `unmetered` states no
    usage; `packs` gives vectors as base64.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.retry_after: str | None = None
        self.requests: list[dict[str, Any]] = []
        self.disconnected = threading.Event()
        self.started = threading.Event()
        self.connections: set[tuple[str, int]] = set()
        self.stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> WireServer:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


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


def _handler(state: WireServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self._authorised():
                self._json(200, {"object": "list", "data": [{"id": "echo"}, {"id": "other"}]})

        def do_POST(self) -> None:
            state.connections.add(self.client_address)
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            state.requests.append({"path": self.path, "body": body, "headers": dict(self.headers)})
            state.started.set()
            if not self._authorised():
                return
            model = body["model"]
            if model.startswith("status-"):
                self._refuse(int(model.split("-")[1]), *model.split("-")[2:])
            elif model == "silent":
                self._wait_for_disconnect()
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
            self._json(401, {"error": {"message": f"Incorrect API key provided: {given}"}})
            return False

        def _refuse(self, status: int, code: str = "") -> None:
            headers = {"Retry-After": state.retry_after} if state.retry_after else {}
            if 300 <= status < 400:
                headers["Location"] = "https://elsewhere.invalid/v1"
            self._json(status, {"error": {"message": f"refused with {status}", "code": code}}, headers)

        def _words(self, body: dict[str, Any]) -> list[str]:
            text = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
            if isinstance(text, list):
                text = text[0]["text"]
            return [word + " " for word in text.split()]

        def _answer(self, body: dict[str, Any]) -> None:
            words = self._words(body)
            text = "".join(words)
            if body["model"] == "malformed":
                self._raw(200, b"<html>hello</html>")
                return
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
            answer = {"id": "chatcmpl-1", "created": 1764288000, "model": "the-real-name"}
            if self.path.endswith("/chat/completions"):
                answer["object"] = "chat.completion"
                choice["message"] = {"role": "assistant", "content": text}
            else:
                answer["object"] = "text_completion"
                choice["text"] = text
            if body["model"] == "tools":
                choice = {"index": 0, "finish_reason": "tool_calls"}
                choice["message"] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
            if body["model"] != "unmetered":
                answer["usage"] = usage(len(words), len(words))
            choices = [{**choice, "index": index} for index in range(body.get("n", 1))]
            self._json(200, {**answer, "choices": choices})

        def _embed(self, body: dict[str, Any]) -> None:
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            data = [{"index": i, "embedding": [float(len(t)), 1.0]} for i, t in enumerate(texts)]
            if body["model"] == "packs":
                for item in data:
                    item["embedding"] = base64.b64encode(struct.pack("<2f", *item["embedding"])).decode()
            used = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
            self._json(200, {"data": data[::-1], "usage": used})

        def _stream(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            model = body["model"]
            if model == "cut-first":
                self.close_connection = True
                return
            try:
                if model == "ragged":
                    self._ragged(body)
                else:
                    for event in self._events(body):
                        data = event if isinstance(event, str) else json.dumps(event)
                        self._chunk(f"data: {data}\n\n".encode())
                        if model == "cut" and isinstance(event, dict) and event.get("last"):
                            self.close_connection = True
                            return
                self._chunk(b"")
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
            if model == "tools":
                call = {"index": 0, "id": "call_1", "type": "function"}
                yield chunk(tool_calls=[{**call, "function": {"name": "weather", "arguments": ""}}])
                yield chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}])
                yield chunk(tool_calls=[{"index": 0, "function": {"arguments": '"Bern"}'}}])
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
            for word in words:
                time.sleep({"paced": 0.01, "pausing": 0.7}.get(model, 0))
                for index in range(body.get("n", 1)):
                    said = chunk(word)
                    said["choices"][0] |= {"index": index, "logprobs": logprobs(word)}
                    yield said
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
                self._chunk(raw.encode()[start : start + 7])

        def _wait_for_disconnect(self) -> None:
            while not state.stopping.is_set():
                if select.select([self.connection], [], [], 0.05)[0]:
                    state.disconnected.set()
                    break
            self.close_connection = True

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
            self._raw(status, json.dumps(value).encode(), headers)

        def _raw(self, status: int, raw: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, text in (headers or {}).items():
                self.send_header(name, text)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    return Handler
