"""The base class of local engines. An engine runs in a child process, one model per process.

This module and the engines import nothing from the core, so that a child stays small.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

Chunk = dict[str, Any]
"""A chunk of the OpenAI API format: `{"choices": [{"delta"|"text", "finish_reason"}]}` or `{"usage"}`."""

ChunkSink = Callable[[Chunk], bool]
"""A function that takes a chunk. It returns True to stop the generation."""


KV_TYPES: dict[str, tuple[int, int, int]] = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "bf16": (30, 1, 2),
    "q8_0": (8, 32, 34),
    "q5_1": (7, 32, 24),
    "q5_0": (6, 32, 22),
    "q4_1": (3, 32, 20),
    "q4_0": (2, 32, 18),
}
"""Types of the KV cache that llama.cpp has: its number, and the elements and bytes of a block (ggml.h)."""

DEFAULT_KV_TYPE = "f16"


class EngineError(Exception):
    """The engine failed: no device, no memory, or an internal error."""


class NotAModel(EngineError):
    """The engine cannot load the file as a model."""


class NoDevice(EngineError):
    """The installed engine cannot use the device."""


class BadRequest(Exception):
    """The request is wrong. Another seat would reject it, too."""


class Engine(ABC):
    """One loaded model.

    `concurrency` is how many requests it runs at once. If it is more than 1, as many threads may call
    `generate`.
    """

    name: ClassVar[str]
    default_concurrency: ClassVar[int] = 1
    has_dry_run: ClassVar[bool] = False
    keeps_prompts: ClassVar[bool] = False
    """Whether it keeps finished prompts beside its slots, in `prompt_cache_mb`."""

    @abstractmethod
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
        """Load the model at `path`.

        Each of `concurrency` requests has `context` tokens. `gpu_layers` is the number of layers on the GPU,
        -1 for all. `kv_type` is the type of keys and values, one of KV_TYPES. `prompt_cache_mb` is the memory
        of the machine in which finished prompts may be kept. `scratch` is an empty private directory. Raises
        NotAModel for a wrong file, and EngineError for anything else.
        """

    def dry_run(self, path: str, **options: Any) -> None:
        """Print to stderr what `load` would allocate, in llama.cpp's words. It may end the process."""
        raise EngineError(f"{self.name} has no dry run")

    @abstractmethod
    def generate(self, endpoint: str, body: dict[str, Any], send: ChunkSink) -> None:
        """Answer `body` at `endpoint` (`chat/completions`, `completions`). Pass each chunk to `send`.

        The last chunk has `usage`. Raises BadRequest and EngineError.
        """

    @abstractmethod
    def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the embeddings of `body["input"]`. Raises BadRequest and EngineError."""

    @abstractmethod
    def list_backends(self) -> list[str]:
        """Return what the installed engine supports: `cpu`, and `cuda` or `metal` if it is built for them."""
