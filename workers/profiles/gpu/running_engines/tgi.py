"""Hugging Face's Text Generation Inference: https://huggingface.co/docs/text-generation-inference."""

from __future__ import annotations

from typing import ClassVar

from gridq.protocol.models import Json
from workers.profiles.gpu.running_engines.engine import (
    EngineModel,
    EngineState,
    RunningEngine,
    find_short_names,
    parse_tokens,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault


class Tgi(RunningEngine):
    """One model, in memory while the server runs. `/info` says everything."""

    kind: ClassVar[str] = "tgi"
    title: ClassVar[str] = "TGI"
    ports: ClassVar[tuple[int, ...]] = (3000,)

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        return _is_tgi(api.get("info").fields)

    def read_state(self) -> EngineState:
        info = self.api.get("info").fields
        if not _is_tgi(info):
            raise EngineFault("it does not answer as TGI does")
        name = str(info["model_id"])
        model = EngineModel(
            name,
            context=parse_tokens(info.get("max_total_tokens")),
            is_loaded=True,
            aliases=find_short_names(name),
        )
        slots = parse_tokens(info.get("max_concurrent_requests"))
        return EngineState(str(info.get("version") or ""), (model,), slots)


def _is_tgi(info: dict[str, Json]) -> bool:
    """Return whether `/info` is that of TGI, and not of the server for embeddings, which has another API."""
    return (
        isinstance(info.get("model_id"), str)
        and "max_concurrent_requests" in info
        and "model_type" not in info
    )
