"""Servers of models that behave as the documents of each engine say, and its source where we could read it.

Each answers its own API and OpenAI's. What it has, what is loaded and what it refuses can be changed while it
runs. Sources: docs.ollama.com/api, lmstudio.ai/docs/developer/rest, llama.cpp's tools/server/README.md,
docs.vllm.ai, docs.sglang.io, huggingface.co/docs/text-generation-inference, mlx-lm's SERVER.md, localai.io.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.http_server import Handler, LocalServer


@dataclass
class FakeModel:
    """A model of a fake engine. `context` is what one request may use, in tokens (words, here)."""

    name: str
    context: int = 4096
    embeddings: bool = False
    is_loaded: bool = False
    more: dict[str, Any] = field(default_factory=dict)


class EngineHandler(Handler):
    """Answers for `engine`, which the server's own subclass has."""

    engine: FakeEngine

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.engine.asked.append(f"GET {parts.path}")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._answer(self.engine.get(parts.path, query))

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = self.body() if length else None
        self.engine.asked.append(f"POST {self.path}")
        if parts.path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            self._run(parts.path, body)
        else:
            self._answer(self.engine.post(self.path, body))

    def _answer(self, reply: tuple[int, Any] | None) -> None:
        status, value = reply or self.engine.not_found(self.command, self.path)
        self.answer(status, value, {"Connection": "close"})  # else it would answer on it after its end

    def _run(self, path: str, body: dict[str, Any]) -> None:
        refusal = self.engine.refuse(body)
        if refusal is not None:
            self._answer(refusal)
            return
        self.engine.requests.append(
            {"path": path, "body": body, "authorization": self.headers["authorization"]}
        )
        if path == "/v1/embeddings":
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [
                {"object": "embedding", "index": at, "embedding": [0.5, 0.25]} for at in range(len(texts))
            ]
            usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
            self.answer(200, {"object": "list", "model": body["model"], "data": data, "usage": usage})
            return
        if not body.get("stream"):
            message = {"role": "assistant", "content": self.engine.text}
            choice = {"index": 0, "finish_reason": "stop", "message": message, "text": self.engine.text}
            usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
            reply = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
            self.answer(200, {**reply, "choices": [choice], "usage": usage})
            return
        self.begin_stream()
        for piece in self.engine.text.split(" "):
            self._send_event({"choices": [{"index": 0, "delta": {"content": piece + " "}}]})
            time.sleep(self.engine.pause)
        self._send_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        self._send_event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def _send_event(self, value: dict[str, Any]) -> None:
        import json

        event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **value}
        self.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")


class FakeEngine(LocalServer):
    """The base of the fakes. `asked` are the paths that were asked for, `requests` those of models."""

    owner = "me"

    def __init__(self, *models: FakeModel, port: int = 0) -> None:
        super().__init__(type("OwnHandler", (EngineHandler,), {"engine": self}), port=port)
        self.models = list(models)
        self.asked: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.text = "hello there"
        self.pause = 0.0

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def find(self, name: str) -> FakeModel | None:
        return next((each for each in self.models if each.name == name), None)

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [self.list_item(each) for each in self.models]}
        return None

    def post(self, path: str, body: Any) -> tuple[int, Any] | None:
        return None

    def not_found(self, method: str, path: str) -> tuple[int, Any]:
        return 404, {"detail": "Not Found"}

    def list_item(self, model: FakeModel) -> dict[str, Any]:
        return {"id": model.name, "object": "model", "created": 1, "owned_by": self.owner, **model.more}

    def refuse(self, body: dict[str, Any]) -> tuple[int, Any] | None:
        """Return the refusal of a request for a model that it does not have, or with too long a prompt."""
        model = self.find(body["model"])
        if model is None:
            return self.refuse_model(body["model"])
        words = len(str(body.get("messages") or body.get("prompt") or body.get("input")).split())
        return self.refuse_length(words, model) if words > model.context else None

    def refuse_model(self, name: str) -> tuple[int, Any]:
        message = f"The model `{name}` does not exist."
        return 404, {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}

    def refuse_length(self, words: int, model: FakeModel) -> tuple[int, Any] | None:
        return None


class FakeOllama(FakeEngine):
    """Loads a model with its first request, and cuts a prompt that is too long without saying so."""

    owner = "library"
    version = "0.13.5"

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/api/version":
            return 200, {"version": self.version}
        if path == "/api/tags":
            details = {
                "format": "gguf",
                "family": "llama",
                "parameter_size": "3B",
                "quantization_level": "Q4_K_M",
            }
            items = [
                {"name": each.name, "model": each.name, "digest": f"sha-{each.name}", "size": 1, **each.more}
                for each in self.models
            ]
            return 200, {"models": [{**item, "details": details} for item in items]}
        if path == "/api/ps":
            loaded = [each for each in self.models if each.is_loaded]
            items = [{"name": each.name, "model": each.name, "size_vram": 1} for each in loaded]
            return 200, {
                "models": [
                    {**item, "context_length": each.context} for item, each in zip(items, loaded, strict=True)
                ]
            }
        return super().get(path, query)

    def post(self, path: str, body: Any) -> tuple[int, Any] | None:
        model = self.find((body or {}).get("model", ""))
        if path not in ("/api/show", "/api/generate", "/api/embed"):
            return None
        if model is None:
            return 404, {"error": f"model '{body['model']}' not found"}
        if path == "/api/show":
            capabilities = ["embedding"] if model.embeddings else ["completion", "tools"]
            return 200, {
                "parameters": f'stop "<|end|>"\nnum_ctx                        {model.context}',
                "model_info": {"general.architecture": "llama", "llama.context_length": 131072},
                "capabilities": capabilities,
            }
        if path == "/api/generate" and model.embeddings:
            return 400, {"error": f'"{model.name}" does not support generate'}
        model.is_loaded = body.get("keep_alive") != 0
        reason = "load" if model.is_loaded else "unload"
        return 200, {"model": model.name, "response": "", "done": True, "done_reason": reason}

    def not_found(self, method: str, path: str) -> tuple[int, Any]:
        return 404, b"404 page not found"

    def refuse(self, body: dict[str, Any]) -> tuple[int, Any] | None:
        model = self.find(body["model"])
        if model is None:
            message = f"model '{body['model']}' not found"
            return 404, {"error": {"message": message, "type": "api_error", "param": None, "code": None}}
        model.is_loaded = True
        return None


class FakeLMStudio(FakeEngine):
    """`is_old`: before version 0.4, with the REST API v0 alone."""

    owner = "organization_owner"
    is_old = False

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/api/v0/models":
            items = []
            for each in self.models:
                kind = "embeddings" if each.embeddings else "llm"
                state = {"state": "not-loaded"}
                if each.is_loaded:
                    state = {"state": "loaded", "loaded_context_length": each.context}  # type: ignore[dict-item]
                items.append({"id": each.name, "type": kind, "max_context_length": 131072, **state})
            return 200, {"object": "list", "data": items}
        if path == "/api/v1/models" and not self.is_old:
            return 200, {
                "models": [
                    {
                        "type": "embedding" if each.embeddings else "llm",
                        "key": each.name,
                        "max_context_length": 131072,
                        "loaded_instances": [{"id": each.name, "config": {"context_length": each.context}}]
                        if each.is_loaded
                        else [],
                    }
                    for each in self.models
                ]
            }
        return super().get(path, query)

    def post(self, path: str, body: Any) -> tuple[int, Any] | None:
        if path not in ("/api/v1/models/load", "/api/v1/models/unload") or self.is_old:
            return None
        name = body.get("model") or body.get("instance_id")
        model = self.find(name)
        if model is None:
            return 404, {"error": {"type": "model_not_found", "message": f"no model {name}"}}
        model.is_loaded = path.endswith("/load")
        return 200, {"instance_id": name}

    def not_found(self, method: str, path: str) -> tuple[int, Any]:
        return 200, {"error": f"Unexpected endpoint or method. ({method} {path})"}

    def refuse_length(self, words: int, model: FakeModel) -> tuple[int, Any] | None:
        message = (
            f"Trying to keep the first {words} tokens when context the overflows. However, the model is "
            f"loaded with context length of only {model.context} tokens, which is not enough."
        )
        return 400, {"error": message}


class FakeLlamaRouter(FakeEngine):
    """llama-server in router mode."""

    owner = "llamacpp"
    slots = 3

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/props":
            if "model" not in query:
                return 200, {"role": "router", "max_instances": 4, "build_info": "b9000-abc"}
            model = self.find(query["model"])
            if model is None or not model.is_loaded:
                return 400, {"error": {"code": 400, "message": "model is not loaded", "type": "invalid"}}
            settings = {"n_ctx": model.context}
            return 200, {"total_slots": self.slots, "default_generation_settings": settings}
        return super().get(path, query)

    def list_item(self, model: FakeModel) -> dict[str, Any]:
        arguments = ["llama-server", "--embeddings"] if model.embeddings else ["llama-server"]
        value = "loaded" if model.is_loaded else "unloaded"
        return {**super().list_item(model), "status": {"value": value, "args": arguments}} | model.more

    def post(self, path: str, body: Any) -> tuple[int, Any] | None:
        if path not in ("/models/load", "/models/unload"):
            return None
        model = self.find(body["model"])
        if model is None:
            return 404, {"error": {"code": 404, "message": "model is not found", "type": "not_found_error"}}
        if model.is_loaded == (path == "/models/load"):
            state = "already" if model.is_loaded else "not"
            message = f"model is {state} running"
            return 400, {"error": {"code": 400, "message": message, "type": "invalid_request_error"}}
        model.is_loaded = path == "/models/load"
        return 200, {"success": True}

    def not_found(self, method: str, path: str) -> tuple[int, Any]:
        return 404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}


class FakeVllm(FakeEngine):
    """With `has_sleep_mode` it can sleep; a request to a sleeping server fails."""

    owner = "vllm"
    has_sleep_mode = False
    is_sleeping = False

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/version":
            return 200, {"version": "0.32.0"}
        if path == "/is_sleeping" and self.has_sleep_mode:
            return 200, {"is_sleeping": self.is_sleeping}
        return super().get(path, query)

    def list_item(self, model: FakeModel) -> dict[str, Any]:
        return {**super().list_item(model), "root": model.name, "max_model_len": model.context}

    def post(self, path: str, body: Any) -> tuple[int, Any] | None:
        if not self.has_sleep_mode or path not in ("/sleep?level=1&mode=wait", "/wake_up"):
            return None
        self.is_sleeping = path != "/wake_up"
        return 200, {}

    def refuse(self, body: dict[str, Any]) -> tuple[int, Any] | None:
        if self.is_sleeping:
            return 500, {
                "error": {"message": "the engine is asleep", "type": "InternalServerError", "code": 500}
            }
        return super().refuse(body)

    def refuse_length(self, words: int, model: FakeModel) -> tuple[int, Any] | None:
        message = (
            f"This model's maximum context length is {model.context} tokens, but your prompt has at least "
            f"{model.context + 1} input tokens. Please reduce its length. (parameter=input_tokens)"
        )
        return 400, {
            "error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}
        }


class FakeSGLang(FakeEngine):
    owner = "sglang"
    info_path = "/server_info"

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == self.info_path:
            name = self.models[0].name
            more = {"tp_size": 1, "max_running_requests": 48, "version": "0.5.9", "is_embedding": False}
            return 200, {"model_path": name, "served_model_name": name, "context_length": None, **more}
        return super().get(path, query)

    def list_item(self, model: FakeModel) -> dict[str, Any]:
        return {**super().list_item(model), "max_model_len": model.context}

    def refuse_length(self, words: int, model: FakeModel) -> tuple[int, Any] | None:
        message = (
            f"The input ({words} tokens) is longer than the model's context length ({model.context} tokens)."
        )
        return 400, {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": 400}


class FakeTgi(FakeEngine):
    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/info":
            context = self.models[0].context
            limits = {
                "max_concurrent_requests": 128,
                "max_input_tokens": context - 1,
                "max_total_tokens": context,
            }
            return 200, {
                "model_id": self.models[0].name,
                "version": "3.3.6",
                "router": "text-generation-router",
            } | limits
        return super().get(path, query)

    def refuse_length(self, words: int, model: FakeModel) -> tuple[int, Any] | None:
        message = (
            f"Input validation error: `inputs` must have less than {model.context} tokens. Given: {words}"
        )
        return 422, {"error": message, "error_type": "validation"}


class FakeMlx(FakeEngine):
    """Without a Hugging Face cache, it fails after the head of its list of models."""

    has_cache = True

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/health":
            return 200, {"status": "ok"}
        if path == "/v1/models" and not self.has_cache:
            return 200, b""
        return super().get(path, query)

    def list_item(self, model: FakeModel) -> dict[str, Any]:
        return {"id": model.name, "object": "model", "created": 1}


class FakeLocalAI(FakeEngine):
    """It answers Ollama's API too, with `:latest` after its names."""

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if path == "/system":
            loaded = [{"id": each.name} for each in self.models if each.is_loaded]
            return 200, {"backends": ["llama-cpp"], "loaded_models": loaded}
        if path == "/version":
            return 200, {"version": "v3.9.0"}
        if path == "/api/version":
            return 200, {"version": "0.9.0"}
        if path == "/api/tags":
            return 200, {"models": [{"name": f"{each.name}:latest", "digest": "d"} for each in self.models]}
        return super().get(path, query)

    def post(self, path: str, body: Any) -> tuple[int, Any] | None:
        if path not in ("/backend/load", "/backend/shutdown"):
            return None
        model = self.find(body["model"])
        if path == "/backend/shutdown" and (model is None or not model.is_loaded):
            return 404, {"error": {"code": 404, "message": "model not found", "type": ""}}
        if model is None:
            return 500, {"message": f"failed to load model: {body['model']}"}
        model.is_loaded = path == "/backend/load"
        return 200, {"loaded": [model.name], "message": "model loaded"}
