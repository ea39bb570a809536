"""SGLang's server: https://docs.sglang.io/basic_usage/native_api.html."""

from __future__ import annotations

from typing import ClassVar

from gridq.protocol.models import Json
from workers.profiles.gpu.running_engines.engine import (
    ONLY_EMBEDDINGS,
    EngineModel,
    EngineState,
    RunningEngine,
    find_short_names,
    guess_uses,
    parse_tokens,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault


class SGLang(RunningEngine):
    """One model, in memory while the server runs."""

    kind: ClassVar[str] = "sglang"
    title: ClassVar[str] = "SGLang"
    ports: ClassVar[tuple[int, ...]] = (30000,)
    default_slots: ClassVar[int] = 8

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        return bool(_read_info(api))

    def read_state(self) -> EngineState:
        info = _read_info(self.api)
        if not info:
            raise EngineFault("it does not answer as SGLang does")
        models = tuple(
            EngineModel(
                item["id"],
                context=parse_tokens(item.get("max_model_len")) or parse_tokens(info.get("context_length")),
                is_loaded=True,
                aliases=find_short_names(item["id"]),
                **(ONLY_EMBEDDINGS if info.get("is_embedding") else guess_uses(item["id"])),
            )
            for item in self._read_listed_models()
        )
        return EngineState(
            str(info.get("version") or ""), models, parse_tokens(info.get("max_running_requests"))
        )


def _read_info(api: EngineApi) -> dict[str, Json]:
    """Return the server's settings, under the path's present name or its old one; empty if it has none."""
    for path in ("server_info", "get_server_info"):
        info = api.get(path).fields
        if "model_path" in info and "tp_size" in info:
            return info
    return {}
