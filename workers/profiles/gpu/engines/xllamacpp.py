"""The engine xllamacpp: llama.cpp's server inside the process, with continuous batching."""

from __future__ import annotations

import os
import secrets
import socket
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

LOG_ERRORS_ONLY = 1
"""A log level of llama.cpp. Higher ones print prompts."""

LOG_SIZES = 4

EMBEDDING_BATCH_TOKENS = 2048
"""The text of an embedding must fit in one batch."""


class XllamaCppEngine(Engine):
    """Calls the server inside the process. The server also listens for connections, which nothing uses.

    To keep others out, it listens on a socket file in a private directory instead of a port (if the system
    supports it), requires a random key, and allows no cross-origin requests.
    """

    name: ClassVar[str] = "xllamacpp"
    default_concurrency: ClassVar[int] = 4
    has_dry_run: ClassVar[bool] = True
    keeps_prompts: ClassVar[bool] = True

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
        kv_type: str,
        prompt_cache_mb: int,
        scratch: str,
    ) -> None:
        import xllamacpp

        if gpu_layers and self.list_backends() == ["cpu"]:
            raise NoDevice("the installed xllamacpp supports only the CPU")
        params = _make_params(
            path,
            context=context,
            concurrency=concurrency,
            threads=threads,
            gpu_layers=gpu_layers,
            embeddings=embeddings,
            kv_type=kv_type,
        )
        params.fit_params = False  # it would silently reduce the context if memory is short
        params.cache_ram_mib = prompt_cache_mb
        params.verbosity = LOG_ERRORS_ONLY
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

    def dry_run(self, path: str, **options: Any) -> None:
        import xllamacpp

        options.pop("prompt_cache_mb")
        params = _make_params(path, **options)
        params.no_alloc = params.fit_params = True  # together they print the sizes
        params.verbosity = LOG_SIZES
        xllamacpp.Server(params)  # aborts after it has printed them

    def generate(self, endpoint: str, body: dict[str, Any], send: ChunkSink) -> None:
        handle = (
            self._server.handle_chat_completions
            if endpoint == "chat/completions"
            else self._server.handle_completions
        )
        errors: list[Any] = []

        def on_chunk(chunk: dict[str, Any]) -> bool:
            if "error" in chunk:
                errors.append(chunk["error"])
                return True
            return send(chunk)

        request = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            answer = handle(request, on_chunk)
        except (ValueError, TypeError, RuntimeError) as exc:
            raise BadRequest(str(exc)) from None
        if isinstance(answer, dict) and "error" in answer:
            errors.append(answer["error"])
        if errors:
            raise _make_error(errors[0])

    def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self._embeddings:
            raise EngineError("the model is not declared with embeddings")
        try:
            answer: dict[str, Any] = self._server.handle_embeddings(body)
        except (ValueError, TypeError, RuntimeError) as exc:
            raise BadRequest(str(exc)) from None
        if "error" in answer:
            raise _make_error(answer["error"])
        return answer

    def list_backends(self) -> list[str]:
        import xllamacpp

        names = [str(device["name"]).lower() for device in xllamacpp.get_device_info()]
        return [
            backend for backend in ("cpu", "cuda", "metal", "rocm") if any(backend in name for name in names)
        ]


def _make_params(
    path: str,
    *,
    context: int,
    concurrency: int,
    threads: int,
    gpu_layers: int,
    embeddings: bool,
    kv_type: str,
) -> Any:
    """Return what a load and its dry run have in common: all that decides on the size of the buffers."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = context * concurrency
    params.n_parallel = concurrency
    params.n_gpu_layers = gpu_layers
    params.warmup = False
    if kv_type != DEFAULT_KV_TYPE:
        params.cache_type_k = params.cache_type_v = getattr(
            xllamacpp.ggml_type, f"GGML_TYPE_{kv_type.upper()}"
        )
    if KV_TYPES[kv_type][1] > 1:  # llama.cpp quantizes values only with flash attention
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        params.n_batch = params.n_ubatch = min(context, EMBEDDING_BATCH_TOKENS)
    return params


def _make_error(error: Any) -> BadRequest | EngineError:
    """Translate llama.cpp's error `{"code", "message", "type"}`.

    A text that is too long for a batch has code 500, though the request is at fault.
    """
    message = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    code = error.get("code", 500) if isinstance(error, dict) else 500
    if code < 500 or "too large" in message:
        return BadRequest(message)
    return EngineError(message)
