"""xllamacpp: llama.cpp's own server inside the process, with continuous batching."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any, ClassVar

from workers.profiles.gpu.engines.base import BadRequest, Engine, EngineError, NoDevice, NotAModel, Take

ERRORS_ONLY = 1
"""llama.cpp's log level. Higher ones print prompts."""

EMBEDDING_BATCH = 2048
"""An embedded text must fit one batch."""


class XllamaCppEngine(Engine):
    """The server is called in the process; it also listens, which nobody here needs.

    So it listens on a socket file in a private directory (where the system has such) and not on a port, asks
    for a key that nobody knows, and allows no other site's pages.
    """

    name: ClassVar[str] = "xllamacpp"
    default_concurrency: ClassVar[int] = 4

    def __init__(self) -> None:
        self._server: Any = None
        self._embeddings = False

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
        import xllamacpp

        if gpu_layers and self.backends() == ["cpu"]:
            raise NoDevice("the installed xllamacpp was built for the CPU alone")
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = context * concurrency
        params.n_parallel = concurrency
        params.n_gpu_layers = gpu_layers
        params.fit_params = False  # it would make the context smaller in silence where memory is short
        params.cache_ram_mib = 0
        params.warmup = False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.verbosity = ERRORS_ONLY
        if embeddings:
            params.embedding = True
            params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
            params.n_batch = params.n_ubatch = min(context, EMBEDDING_BATCH)
        params.api_keys = [secrets.token_urlsafe(32)]
        params.cors_origins = "http://127.0.0.1"
        params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
        params.n_threads_http = 2
        if hasattr(socket, "AF_UNIX"):
            params.hostnames = [os.path.join(scratch, "engine.sock")]
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as exc:
            raise NotAModel(str(exc)) from None
        self._embeddings = embeddings

    def generate(self, endpoint: str, body: dict[str, Any], take: Take) -> None:
        handle = (
            self._server.handle_chat_completions
            if endpoint == "chat/completions"
            else self._server.handle_completions
        )
        faults: list[Any] = []

        def on_chunk(chunk: dict[str, Any]) -> bool:
            if "error" in chunk:
                faults.append(chunk["error"])
                return True
            return take(chunk)

        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            answer = handle(asked, on_chunk)
        except (ValueError, TypeError, RuntimeError) as exc:
            raise BadRequest(str(exc)) from None
        if isinstance(answer, dict) and "error" in answer:
            faults.append(answer["error"])
        if faults:
            raise _fault(faults[0])

    def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self._embeddings:
            raise EngineError("the model is not declared to have embeddings")
        try:
            answer: dict[str, Any] = self._server.handle_embeddings(body)
        except (ValueError, TypeError, RuntimeError) as exc:
            raise BadRequest(str(exc)) from None
        if "error" in answer:
            raise _fault(answer["error"])
        return answer

    def backends(self) -> list[str]:
        import xllamacpp

        names = [str(device["name"]).lower() for device in xllamacpp.get_device_info()]
        return [backend for backend in ("cpu", "cuda", "metal") if any(backend in name for name in names)]


def _fault(error: Any) -> BadRequest | EngineError:
    """llama.cpp's `{"code", "message", "type"}`; a text too long for a batch comes as 500 and is the
    request's fault.
    """
    message = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    code = error.get("code", 500) if isinstance(error, dict) else 500
    if code < 500 or "too large" in message:
        return BadRequest(message)
    return EngineError(message)
