"""A small server that speaks Google's Gemini API and behaves as the model's name says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.local_http import Handler, ModelServer

KEY = "AIza-test-0123456789"
MODELS = ("echo", "other")
LONG = 10_000_000
"""How many bytes the model `long` says."""


class GoogleServer(ModelServer):
    """Start it with `with GoogleServer() as server`; `server.url` is the base URL, `/v1beta` at its end.

    Models: `echo` says the last words back, one event a word; `slow` goes on for ever; `long` says ten
    million bytes; `empty` ends without a word; `thinking` thinks first; `tools` calls a function; `silent`
    takes the request and says nothing; `status-<n>` refuses (with `retry_delay` in its details and
    `refusal_headers`); `unknown` is not there; `blocked` refuses the prompt; `cut` breaks off after a word,
    `cut-first` before one; `error-late` puts an error into the stream. Vectors have two numbers.
    """

    def __init__(self, key: str = KEY) -> None:
        super().__init__(_handler(self), key)
        self.url = self.url.removesuffix("/v1") + "/v1beta"
        self.refusal_headers: dict[str, str] = {}
        self.retry_delay: str | None = None


STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error(status: int, message: str, details: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    said: dict[str, Any] = {"code": status, "message": message, "status": STATUSES.get(status, "UNKNOWN")}
    return {"error": said | ({"details": details} if details else {})}


BAD_KEY = error(
    400,
    "API key not valid. Please pass a valid API key.",
    [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "API_KEY_INVALID",
            "domain": "googleapis.com",
            "metadata": {"service": "generativelanguage.googleapis.com"},
        }
    ],
)


def last_words(body: dict[str, Any]) -> str:
    """The last text of the last content that the user sent."""
    contents = body["contents"]
    said = next(one for one in reversed(contents) if one.get("role", "user") == "user")
    return next((part["text"] for part in reversed(said["parts"]) if "text" in part), "")


def candidate(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    said: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    return said | ({"finishReason": finish} if finish else {})


def usage(tokens_out: int, thoughts: int = 0) -> dict[str, Any]:
    counted = {
        "promptTokenCount": 7,
        "cachedContentTokenCount": 2,
        "candidatesTokenCount": tokens_out,
        "totalTokenCount": 7 + tokens_out + thoughts,
    }
    return counted | ({"thoughtsTokenCount": thoughts} if thoughts else {})


def _handler(state: GoogleServer) -> type[Handler]:
    class Google(Handler):
        def do_GET(self) -> None:
            if not self._authorised():
                return
            path = urlsplit(self.path).path
            if path != "/v1beta/models":
                self.answer(404, error(404, path))
                return
            methods = ["generateContent", "countTokens"]
            models = [
                {"name": f"models/{name}", "supportedGenerationMethods": methods}
                for name in ("echo", "other")
            ]
            self.answer(200, {"models": models})

        def do_POST(self) -> None:
            body = state.take(self)
            name, _, method = urlsplit(self.path).path.rpartition("/")[2].partition(":")
            if not self._authorised():
                return
            if name == "unknown":
                words = f"models/{name} is not found for API version v1beta."
                self.answer(404, error(404, words))
            elif name.startswith("status-"):
                self._refuse(int(name.removeprefix("status-")))
            elif name == "silent":
                state.keep_silent(self)
            elif method == "countTokens":
                self.answer(200, {"totalTokens": 7})
            elif method == "embedContent":
                self.answer(200, {"embedding": {"values": [1.0, 2.0]}})
            elif method == "batchEmbedContents":
                self.answer(200, {"embeddings": [{"values": [1.0, 2.0]} for _ in body["requests"]]})
            elif method == "streamGenerateContent":
                self._stream(name, body)
            else:
                self.answer(200, self._whole(name, body))

        def _authorised(self) -> bool:
            asked = parse_qs(urlsplit(self.path).query).get("key", [""])[0]
            if state.key in (self.headers.get("x-goog-api-key"), asked):
                return True
            self.answer(400, BAD_KEY)
            return False

        def _refuse(self, status: int) -> None:
            details = []
            if state.retry_delay is not None:
                kind = "type.googleapis.com/google.rpc.RetryInfo"
                details = [{"@type": kind, "retryDelay": state.retry_delay}]
            said = error(status, f"refused with {status}", details)
            self.answer(status, said, state.refusal_headers)

        def _whole(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = {"usageMetadata": usage(3), "modelVersion": "the-real-name"}
            answer["responseId"] = "r_1"
            if name == "blocked":
                return {**answer, "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}
            parts: list[dict[str, Any]] = [{"text": last_words(body)}]
            if name == "long":
                parts = [{"text": "ten bytes " * (LONG // 10)}]
            if name == "tools":
                parts = [{"functionCall": {"name": "weather", "args": {"city": "Bern"}}}]
            if name == "thinking":
                parts = [{"text": "let me see", "thought": True}, *parts]
                answer["usageMetadata"] = usage(3, thoughts=1)
            return {**answer, "candidates": [candidate([] if name == "empty" else parts, "STOP")]}

        def _events(self, name: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
            whole = self._whole(name, body)
            if name in ("blocked", "empty", "tools"):
                yield whole
                return
            begun = {"modelVersion": "the-real-name", "responseId": "r_1", "usageMetadata": usage(0)}
            if name == "cut-first":
                return
            while name == "slow" and not state.stopping.is_set():
                yield {**begun, "candidates": [candidate([{"text": "on "}])]}
                time.sleep(0.02)
            for part in whole["candidates"][0]["content"]["parts"]:
                text, size = part["text"], 100_000
                pieces = [text[at : at + size] for at in range(0, len(text), size)]
                for piece in pieces if name == "long" else [word + " " for word in text.split()]:
                    yield {**begun, "candidates": [candidate([{**part, "text": piece}])]}
                    if name == "cut":
                        return
                    if name == "error-late":
                        yield error(503, "The model is overloaded. Please try again later.")
                        return
            yield {**whole, "candidates": [candidate([{"text": ""}], "STOP")]}

        def _stream(self, name: str, body: dict[str, Any]) -> None:
            self.begin_stream()
            whole = False
            try:
                for event in self._events(name, body):
                    self.chunk(f"data: {json.dumps(event)}\r\n\r\n".encode())
                    whole = "error" in event or name not in ("cut", "cut-first", "slow")
                if whole:
                    self.chunk(b"")
                    return
            except (BrokenPipeError, ConnectionResetError):
                state.disconnected.set()
            self.close_connection = True

    return Google
