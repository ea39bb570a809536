"""LocalAI: https://localai.io/reference/api. It also answers Ollama's API, with names of its own."""

from __future__ import annotations

from typing import ClassVar

from gridq.protocol.models import Json
from workers.profiles.gpu.running_engines.engine import (
    LOAD_SECONDS,
    UNLOAD_SECONDS,
    EngineModel,
    EngineState,
    RunningEngine,
    guess_uses,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault


class LocalAI(RunningEngine):
    """A request loads its model. It does not say how many requests a model runs at once, nor its context."""

    kind: ClassVar[str] = "localai"
    title: ClassVar[str] = "LocalAI"
    ports: ClassVar[tuple[int, ...]] = (8080,)

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        system = api.get("system").fields
        return "backends" in system and isinstance(system.get("loaded_models"), list)

    def read_state(self) -> EngineState:
        if not self.recognizes(self.api):
            raise EngineFault("it does not answer as LocalAI does")
        version = self.api.get("version").fields.get("version")
        loaded = {each.get("id") for each in self._read_loaded()}
        models = [
            EngineModel(item["id"], is_loaded=item["id"] in loaded, **guess_uses(item["id"]))
            for item in self._read_listed_models()
        ]
        models.sort(key=lambda each: not each.is_loaded)
        return EngineState(str(version or ""), tuple(models))

    def load(self, model: str) -> None:
        self.api.order("backend/load", {"model": model}, LOAD_SECONDS)

    def unload(self, model: str) -> None:
        """End the backend of `model`. Of one that is not loaded LocalAI would say 404."""
        if any(each.get("id") == model for each in self._read_loaded()):
            self.api.order("backend/shutdown", {"model": model}, UNLOAD_SECONDS)

    def _read_loaded(self) -> list[dict[str, Json]]:
        found = self.api.get("system").fields.get("loaded_models")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
