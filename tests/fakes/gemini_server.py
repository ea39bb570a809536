"""A fake server of the Gemini API or of Vertex AI. The name of the model selects its behavior.

Its answers are checked with Google's own Python package (tests/integration/test_google_clients.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.http_server import Handler, ModelServer

KEY = "AIza-test-0123456789"
PUBLISHER = "/v1/projects/p/locations/global/publishers/google"


class GeminiServer(ModelServer):
    """Use `with GeminiServer() as server`. `server.url` is the base URL. With `vertex` it is Vertex AI.

    Models: `echo` (and any other) repeats the words of the last text, one event per word; `tools` calls a
    function; `thinking` thinks first and sends its thoughts with a call; `silent` sends nothing; `status-<n>`
    rejects, `quota` for `retry_after` seconds, `bad-key` with the error of a wrong key; `blocked` blocks the
    prompt, `unsafe` ends in SAFETY, `empty` has no candidate, `broken-call` sends a malformed tool call;
    `cut` breaks off after a word, `cut-first` before one; `malformed` sends no JSON; `error-late` puts an
    error into the stream; `unmetered` states no usage; `caching` reads most from a cache; `picture` answers
    with an image.
    """

    def __init__(self, key: str = KEY, *, vertex: bool = False) -> None:
        super().__init__(_handler(self), key)
        self.vertex = vertex
        self.retry_after = 34.5
        self.url = self.url.removesuffix("/v1") + (PUBLISHER if vertex else "/v1beta")


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


def error(status: int, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    body = {"code": status, "message": message, "status": STATUSES.get(status, "UNKNOWN")}
    return {"error": body | ({"details": list(details)} if details else {})}


def google_type(name: str) -> str:
    return f"type.googleapis.com/google.rpc.{name}"


def bad_key(key: str) -> dict[str, Any]:
    """Return a refusal that repeats `key`, as a careless server may."""
    reason = {"@type": google_type("ErrorInfo"), "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
    return error(400, f"API key not valid. Please pass a valid API key: {key}", reason)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _handler(state: GeminiServer) -> type[Handler]:
    class Google(Handler):
        def do_GET(self) -> None:
            if not self._authorised():
                return
            generates = {"supportedGenerationMethods": ["generateContent", "countTokens"]}
            models = [
                {"name": "models/echo", "displayName": "Echo", "inputTokenLimit": 1000, **generates},
                {"name": "models/embed", "supportedGenerationMethods": ["embedContent"]},
                {"name": "models/images", "supportedGenerationMethods": ["predict"]},
            ]
            self.answer(200, {"models": models})

        def do_POST(self) -> None:
            body = state.take(self)
            if not self._authorised():
                return
            where = urlsplit(self.path)
            place, _, method = where.path.rpartition(":")
            model = unquote(place.rpartition("/models/")[2])
            streams = method == "streamGenerateContent"
            if method == "countTokens":
                self.answer(200, {"totalTokens": len(_words(body))})
            elif method in ("embedContent", "batchEmbedContents", "predict"):
                self._embed(method, body)
            elif method not in ("generateContent", "streamGenerateContent"):
                self.answer(404, error(404, f"no method {method}"))
            elif model.startswith("status-"):
                status = int(model.removeprefix("status-"))
                self.answer(status, error(status, f"refused with {status}"))
            elif model == "quota":
                delay = {"@type": google_type("RetryInfo"), "retryDelay": f"{state.retry_after}s"}
                self.answer(429, error(429, "You exceeded your current quota", delay))
            elif model == "bad-key":
                self.answer(400, bad_key(state.key))
            elif model == "silent":
                state.keep_silent(self)
            elif streams and parse_qs(where.query).get("alt") != ["sse"]:
                self.answer(400, error(400, "this server streams by alt=sse"))
            elif streams:
                self._stream(model, body)
            else:
                self._answer(model, body)

        def _authorised(self) -> bool:
            given = self.headers.get("Authorization" if state.vertex else "x-goog-api-key", "")
            if given.removeprefix("Bearer ") == state.key and "key=" not in self.path:
                return True
            if given and not state.vertex:
                self.answer(400, bad_key(given))
            else:
                status = 401 if state.vertex else 403
                self.answer(status, error(status, f"refused: {given}"))
            return False

        def _answer(self, model: str, body: dict[str, Any]) -> None:
            if model == "malformed":
                self.answer(200, b"<html>hello</html>")
                return
            events = list(_events(model, body))
            whole = events[-1]
            if whole.get("candidates"):
                parts = [part for each in events for part in each["candidates"][0]["content"]["parts"]]
                whole["candidates"][0]["content"]["parts"] = parts
            self.answer(200, whole)

        def _embed(self, method: str, body: dict[str, Any]) -> None:
            if method == "predict":
                embeddings = [{"values": [float(len(each["content"])), 1.0]} for each in body["instances"]]
                counted = [
                    {**each, "statistics": {"token_count": 3, "truncated": False}} for each in embeddings
                ]
                self.answer(200, {"predictions": [{"embeddings": each} for each in counted]})
                return
            requests = body["requests"] if method == "batchEmbedContents" else [body]
            embeddings = [
                {"values": [float(len(each["content"]["parts"][0]["text"])), 1.0]} for each in requests
            ]
            self.answer(
                200,
                {"embeddings": embeddings}
                if method == "batchEmbedContents"
                else {"embedding": embeddings[0]},
            )

        def _stream(self, model: str, body: dict[str, Any]) -> None:
            self.begin_stream()
            self.close_connection = model.startswith("cut")
            try:
                if model == "cut-first":
                    return
                if model == "malformed":
                    self.chunk(b"data: {not json\r\n\r\n")
                for at, event in enumerate(_events(model, body)):
                    self.chunk(f"data: {json.dumps(event)}\r\n\r\n".encode())
                    if model == "cut":
                        return
                    if model == "error-late" and at == 0:
                        self.chunk(
                            f"data: {json.dumps(error(503, 'The model is overloaded.'))}\r\n\r\n".encode()
                        )
                self.chunk(b"")
            except (BrokenPipeError, ConnectionResetError):
                state.disconnected.set()
                self.close_connection = True

    return Google


def _words(body: dict[str, Any]) -> list[str]:
    contents = (body.get("generateContentRequest") or body)["contents"]
    texts = [part["text"] for part in contents[-1]["parts"] if part.get("text")]
    return [word + " " for word in " ".join(texts).split()]


def _events(model: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream; the last one has the finish reason."""
    head = {"modelVersion": "the-real-name", "responseId": "r1"}
    words = _words(body) or ["nothing "]
    used: dict[str, Any] = {"promptTokenCount": len(words), "candidatesTokenCount": len(words)}
    if model == "thinking":
        used["thoughtsTokenCount"] = 40
    if model == "caching":
        used |= {"promptTokenCount": 1000, "cachedContentTokenCount": 900}
        used["promptTokensDetails"] = [
            {"modality": "TEXT", "tokenCount": 950},
            {"modality": "AUDIO", "tokenCount": 50},
        ]
    used["totalTokenCount"] = sum(value for key, value in used.items() if key in COUNTED)
    usage = {} if model == "unmetered" else {"usageMetadata": used}
    if model == "blocked":
        yield {**head, "promptFeedback": {"blockReason": "SAFETY"}, **usage}
        return
    if model == "empty":
        yield {**head, **usage}
        return
    parts: list[dict[str, Any]] = [{"text": word} for word in words]
    reason = {"unsafe": "SAFETY", "broken-call": "MALFORMED_FUNCTION_CALL"}.get(model, "STOP")
    if model in ("tools", "thinking"):
        call: dict[str, Any] = {"functionCall": {"name": "weather", "args": {"city": "Bern"}, "id": "c1"}}
        parts = [{"text": "I look"}, call]
        if model == "thinking":
            parts = [{"text": "let me see", "thought": True}, {**call, "thoughtSignature": "c2ln"}]
    if model == "picture":
        parts = [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}]
    if model == "broken-call":
        parts = []
    for part in parts:
        so_far = {"promptTokenCount": used["promptTokenCount"], "totalTokenCount": used["promptTokenCount"]}
        content = {"role": "model", "parts": [part]}
        metered = {"usageMetadata": so_far} if usage else {}
        yield {**head, "candidates": [{"index": 0, "content": content}], **metered}
    ended = {"index": 0, "content": {"role": "model", "parts": []}, "finishReason": reason}
    yield {**head, "candidates": [ended], **usage}


COUNTED = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
