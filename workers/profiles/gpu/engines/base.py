"""What a local engine must do. It runs in a child process of its own, one model a process.

This module and the engines import nothing of the core, so that a child stays small.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

Chunk = dict[str, Any]
"""One OpenAI-shaped chunk: `{"choices": [{"delta"|"text", "finish_reason"}]}`, at the end one with `usage`.
"""

Take = Callable[[Chunk], bool]
"""Takes a chunk; True: stop, nobody wants the rest."""


class EngineError(Exception):
    """The engine cannot do it: no device, no memory, a fault of its own."""


class NotAModel(EngineError):
    """The file is no model that this engine can load."""


class NoDevice(EngineError):
    """The installed engine cannot use the device."""


class BadRequest(Exception):
    """The request is wrong; another seat would refuse it as well."""


class Engine(ABC):
    """One loaded model.

    `concurrency` is how many requests it truly serves at once: where it is more than 1, `generate` may be called by
    as many threads.
    """

    name: ClassVar[str]
    default_concurrency: ClassVar[int] = 1

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
        scratch: str,
    ) -> None:
        """Load the model. `context` tokens each of `concurrency` requests; `gpu_layers` -1: all, 0: none on a GPU.

        `scratch` is an empty private directory. NotAModel: the file; EngineError: anything else.
        """

    @abstractmethod
    def generate(self, endpoint: str, body: dict[str, Any], take: Take) -> None:
        """Answer `body` at `endpoint` (`chat/completions`, `completions`), each chunk to `take` as it is
        made.

        The last chunk carries `usage`. BadRequest, EngineError.
        """

    @abstractmethod
    def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        """The embeddings of `body["input"]`, OpenAI-shaped. BadRequest, EngineError."""

    @abstractmethod
    def backends(self) -> list[str]:
        """What the installed engine can compute on: `cpu`, and `cuda` or `metal` if built for them."""
