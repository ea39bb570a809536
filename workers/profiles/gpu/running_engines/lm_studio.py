"""LM Studio, by its REST APIs v1, else v0: https://lmstudio.ai/docs/developer/rest."""

from __future__ import annotations

from typing import ClassVar

from gridq.protocol.models import Json
from workers.profiles.gpu.running_engines.engine import (
    LOAD_SECONDS,
    UNLOAD_SECONDS,
    EngineModel,
    EngineState,
    RunningEngine,
    parse_tokens,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault

EMBEDDING_TYPES = ("embedding", "embeddings")
TEXT_TYPES = ("llm", "vlm")


class LMStudio(RunningEngine):
    """A request loads its model if the owner allows that (just-in-time loading, the default).

    It does not say how many requests a model runs at once, nor its version.
    """

    kind: ClassVar[str] = "lm-studio"
    title: ClassVar[str] = "LM Studio"
    ports: ClassVar[tuple[int, ...]] = (1234,)

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        items = api.get("api/v0/models").fields.get("data")
        if isinstance(items, list) and all(isinstance(each, dict) and "state" in each for each in items):
            return True
        models = api.get("api/v1/models").fields.get("models")
        return isinstance(models, list) and all(
            isinstance(each, dict) and "loaded_instances" in each for each in models
        )

    def read_state(self) -> EngineState:
        models = self.api.get("api/v1/models").fields.get("models")
        if isinstance(models, list):
            found = [_parse_model(each) for each in models if isinstance(each, dict) and each.get("key")]
        else:  # before version 0.4
            items = self.api.get("api/v0/models").fields.get("data")
            if not isinstance(items, list):
                raise EngineFault("it does not answer as LM Studio does")
            found = [_parse_old_model(each) for each in items if isinstance(each, dict) and each.get("id")]
        return EngineState(models=tuple(sorted(found, key=lambda each: not each.is_loaded)))

    def load(self, model: str) -> None:
        self.api.order("api/v1/models/load", {"model": model}, LOAD_SECONDS)

    def unload(self, model: str) -> None:
        """Unload every loaded instance of `model`."""
        models = self.api.get("api/v1/models").fields.get("models")
        for each in models if isinstance(models, list) else ():
            if isinstance(each, dict) and each.get("key") == model:
                for instance in each.get("loaded_instances") or ():
                    self.api.order("api/v1/models/unload", {"instance_id": instance["id"]}, UNLOAD_SECONDS)


def _parse_model(item: dict[str, Json]) -> EngineModel:
    instances = [each for each in item.get("loaded_instances") or () if isinstance(each, dict)]
    contexts = [parse_tokens((each.get("config") or {}).get("context_length")) for each in instances]
    known = [each for each in contexts if each is not None]
    return EngineModel(
        str(item["key"]),
        context=min(known) if known else None,
        embeddings=item.get("type") in EMBEDDING_TYPES,
        any=item.get("type") in TEXT_TYPES,
        is_loaded=bool(instances),
    )


def _parse_old_model(item: dict[str, Json]) -> EngineModel:
    is_loaded = item.get("state") == "loaded"
    return EngineModel(
        str(item["id"]),
        context=parse_tokens(item.get("loaded_context_length")) if is_loaded else None,
        embeddings=item.get("type") in EMBEDDING_TYPES,
        any=item.get("type") in TEXT_TYPES,
        is_loaded=is_loaded,
    )
