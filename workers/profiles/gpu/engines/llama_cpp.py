"""The engine llama-cpp-python: llama.cpp through ctypes, one request at a time."""

from __future__ import annotations

import inspect
import threading
from typing import Any, ClassVar

from workers.profiles.gpu.engines.base import (
    DEFAULT_KV_TYPE,
    KV_TYPES,
    BadRequest,
    ChunkSink,
    Engine,
    EngineError,
    NoDevice,
    NotAModel,
)


class LlamaCppEngine(Engine):
    """Runs one request at a time under a lock, because a `Llama` object is not thread-safe."""

    name: ClassVar[str] = "llama_cpp"

    def __init__(self) -> None:
        self._model: Any = None
        self._embedder: Any = None
        self._settings: dict[str, Any] = {}
        self._embeddings = False
        self._lock = threading.Lock()

    def load(
        self,
        path: str,
        *,
        context: int,
        concurrency: int,
        threads: int,
        gpu_layers: int,
        embeddings: bool,
        kv_type: str,
        prompt_cache_mb: int,
        scratch: str,
    ) -> None:
        if gpu_layers and self.list_backends() == ["cpu"]:
            raise NoDevice("the installed llama-cpp-python supports only the CPU")
        self._settings = {
            "model_path": path,
            "n_ctx": context,
            "n_gpu_layers": gpu_layers,
            "n_threads": threads,
            "verbose": False,
        }
        if kv_type != DEFAULT_KV_TYPE:
            number, block, _ = KV_TYPES[kv_type]
            self._settings |= {"type_k": number, "type_v": number, "flash_attn": block > 1}
        self._model = self._open_model()
        self._embeddings = embeddings

    def _open_model(self, **options: Any) -> Any:
        import llama_cpp

        try:
            return llama_cpp.Llama(**self._settings, **options)
        except ValueError as exc:  # "Failed to load model from file"
            raise NotAModel(str(exc)) from None
        except (RuntimeError, OSError, AssertionError) as exc:
            raise EngineError(f"{type(exc).__name__}: {exc}") from None

    def generate(self, endpoint: str, body: dict[str, Any], send: ChunkSink) -> None:
        call = (
            self._model.create_chat_completion
            if endpoint == "chat/completions"
            else self._model.create_completion
        )
        parameters = inspect.signature(call).parameters
        arguments = {key: value for key, value in body.items() if key in parameters}
        if "max_completion_tokens" in body:
            arguments.setdefault("max_tokens", body["max_completion_tokens"])
        pieces = 0
        with self._lock:
            try:
                for chunk in call(**arguments, stream=True):
                    choice = chunk["choices"][0]
                    if choice.get("text") or choice.get("delta", {}).get("content"):
                        pieces += 1
                    if send(chunk):
                        return
                context_tokens = int(self._model.n_tokens)
            except (ValueError, TypeError, KeyError) as exc:  # "Requested tokens … exceed context window"
                raise BadRequest(str(exc)) from None
            except (RuntimeError, AssertionError) as exc:
                raise EngineError(f"{type(exc).__name__}: {exc}") from None
        # Streams of this library state no usage. A piece is a token; the rest of the context is the prompt.
        usage = {"prompt_tokens": max(0, context_tokens - pieces), "completion_tokens": pieces}
        send({"choices": [], "usage": {**usage, "total_tokens": sum(usage.values())}})

    def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self._embeddings:
            raise EngineError("the model is not declared with embeddings")
        import llama_cpp

        with self._lock:
            # a model opened for embeddings does not generate text, so it is opened twice
            if self._embedder is None:
                self._embedder = self._open_model(
                    embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN
                )
            try:
                texts = body["input"]
                for text in [texts] if isinstance(texts, str) else texts:
                    _check_length(self._embedder, text)
                answer: dict[str, Any] = self._embedder.create_embedding(input=texts)
            except (ValueError, TypeError) as exc:
                raise BadRequest(str(exc)) from None
            except (RuntimeError, AssertionError) as exc:
                raise EngineError(f"{type(exc).__name__}: {exc}") from None
        return answer

    def list_backends(self) -> list[str]:
        import platform

        import llama_cpp

        if not llama_cpp.llama_supports_gpu_offload():
            return ["cpu"]
        return ["cpu", "metal" if platform.system() == "Darwin" else "cuda"]


def _check_length(embedder: Any, text: str) -> None:
    """Raise BadRequest if a text does not fit in one batch: `create_embedding` would cut it off silently."""
    tokens = len(embedder.tokenize(text.encode()))
    if tokens > embedder.n_batch:
        raise BadRequest(f"Requested tokens ({tokens}) exceed context window of {embedder.n_batch}")
