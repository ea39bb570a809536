"""Servers without an API of their own: MLX's, and any other of the OpenAI API format."""

from __future__ import annotations

from typing import ClassVar

from workers.profiles.gpu.running_engines.engine import (
    EngineModel,
    EngineState,
    RunningEngine,
    find_short_names,
    guess_uses,
)
from workers.profiles.gpu.running_engines.engine_api import OK, EngineApi, EngineFault, Reply


class OpenAICompatible(RunningEngine):
    """A server of which only `/v1/models` is known. It is adopted only if its owner names it."""

    kind: ClassVar[str] = "openai-compatible"
    title: ClassVar[str] = "OpenAI-compatible server"

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        return isinstance(api.get("v1/models").fields.get("data"), list)

    def read_state(self) -> EngineState:
        names = [item["id"] for item in self._read_listed_models()]
        return EngineState(
            models=tuple(
                EngineModel(name, aliases=find_short_names(name), **guess_uses(name)) for name in names
            )
        )


class Mlx(OpenAICompatible):
    """`mlx_lm.server`, which loads each model of the Hugging Face cache with its first request.

    Its paths are those of OpenAI and `/health`. What gives it away is the server of Python's own library, and
    that a model in its list has three fields and no owner. While its user has no cache, the list breaks off
    before its first byte.
    """

    kind: ClassVar[str] = "mlx"
    title: ClassVar[str] = "MLX"
    ports: ClassVar[tuple[int, ...]] = (8080,)
    default_slots: ClassVar[int] = 8

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        health = api.get("health")
        if not health.headers.get("server", "").startswith("BaseHTTP/") or health.value != {"status": "ok"}:
            return False
        reply = api.get("v1/models")
        items = reply.fields.get("data")
        return _has_broken_off(reply) or (
            isinstance(items, list)
            and all(isinstance(each, dict) and set(each) == {"id", "object", "created"} for each in items)
        )

    def read_state(self) -> EngineState:
        if _has_broken_off(self.api.get("v1/models")):
            raise EngineFault(
                "it cannot list its models while its user has no Hugging Face cache; create the folder "
                "~/.cache/huggingface/hub, or `hub` in HF_HOME"
            )
        return super().read_state()


def _has_broken_off(reply: Reply) -> bool:
    return reply.status == OK and reply.value is None
