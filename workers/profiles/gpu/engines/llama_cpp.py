"""llama-cpp-python: llama.cpp by ctypes, one request at a time."""

from __future__ import annotations

import inspect
import threading
from typing import Any, ClassVar

from workers.profiles.gpu.engines.base import BadRequest, Engine, EngineError, NoDevice, NotAModel, Take


class LlamaCppEngine(Engine):
    """A `Llama` object is not made for two threads: a lock keeps requests apart, and one slot is what is
    offered.
    """

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
        scratch: str,
    ) -> None:
        if gpu_layers and self.backends() == ["cpu"]:
            raise NoDevice("the installed llama-cpp-python was built for the CPU alone")
        self._settings = {
            "model_path": path,
            "n_ctx": context,
            "n_gpu_layers": gpu_layers,
            "n_threads": threads,
            "verbose": False,
        }
        self._model = self._open()
        self._embeddings = embeddings

    def _open(self, **more: Any) -> Any:
        import llama_cpp

        try:
            return llama_cpp.Llama(**self._settings, **more)
        except ValueError as exc:  # "Failed to load model from file"
            raise NotAModel(str(exc)) from None
        except (RuntimeError, OSError, AssertionError) as exc:
            raise EngineError(f"{type(exc).__name__}: {exc}") from None

    def generate(self, endpoint: str, body: dict[str, Any], take: Take) -> None:
        call = (
            self._model.create_chat_completion
            if endpoint == "chat/completions"
            else self._model.create_completion
        )
        known = inspect.signature(call).parameters
        asked = {key: value for key, value in body.items() if key in known}
        if "max_completion_tokens" in body:
            asked.setdefault("max_tokens", body["max_completion_tokens"])
        pieces = 0
        with self._lock:
            try:
                for chunk in call(**asked, stream=True):
                    choice = chunk["choices"][0]
                    if choice.get("text") or choice.get("delta", {}).get("content"):
                        pieces += 1
                    if take(chunk):
                        return
                held = int(self._model.n_tokens)
            except (ValueError, TypeError, KeyError) as exc:  # "Requested tokens … exceed context window"
                raise BadRequest(str(exc)) from None
            except (RuntimeError, AssertionError) as exc:
                raise EngineError(f"{type(exc).__name__}: {exc}") from None
        # a stream of this library states no usage: a piece is a token, the rest the model holds is the prompt
        usage = {"prompt_tokens": max(0, held - pieces), "completion_tokens": pieces}
        take({"choices": [], "usage": {**usage, "total_tokens": sum(usage.values())}})

    def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self._embeddings:
            raise EngineError("the model is not declared to have embeddings")
        import llama_cpp

        with self._lock:
            if (
                self._embedder is None
            ):  # a model opened for embeddings does not generate, so it is opened twice
                self._embedder = self._open(embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN)
            try:
                answer: dict[str, Any] = self._embedder.create_embedding(input=body["input"])
            except (ValueError, TypeError) as exc:
                raise BadRequest(str(exc)) from None
            except (RuntimeError, AssertionError) as exc:
                raise EngineError(f"{type(exc).__name__}: {exc}") from None
        return answer

    def backends(self) -> list[str]:
        import platform

        import llama_cpp

        if not llama_cpp.llama_supports_gpu_offload():
            return ["cpu"]
        return ["cpu", "metal" if platform.system() == "Darwin" else "cuda"]
