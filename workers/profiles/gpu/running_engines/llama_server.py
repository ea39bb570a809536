"""llama.cpp's llama-server, with one model or as a router of several.

Its API: https://github.com/ggml-org/llama.cpp/tree/master/tools/server.
"""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import ClassVar

from gridq.protocol.models import Json
from workers.profiles.gpu.running_engines.engine import (
    LOAD_SECONDS,
    NOTHING,
    ONLY_EMBEDDINGS,
    UNLOAD_SECONDS,
    EngineModel,
    EngineState,
    RunningEngine,
    Uses,
    guess_uses,
    parse_tokens,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault

OWNER = "llamacpp"
POLL_SECONDS = 0.25


class LlamaServer(RunningEngine):
    """Its slots and the context of each are in `/props`. A router loads a model with its first request."""

    kind: ClassVar[str] = "llama-server"
    title: ClassVar[str] = "llama-server"
    ports: ClassVar[tuple[int, ...]] = (8080,)

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        props = api.get("props")
        if "total_slots" in props.fields or props.fields.get("role") == "router":
            return True
        items = api.get("v1/models").fields.get("data")  # which needs no key
        return isinstance(items, list) and any(
            isinstance(each, dict) and each.get("owned_by") == OWNER for each in items
        )

    def read_state(self) -> EngineState:
        props = self.api.get("props").fields
        items = self._read_listed_models()
        slots = parse_tokens(props.get("total_slots"))
        models = []
        for item in items:
            status = item.get("status")
            is_router = isinstance(status, dict)
            name = item["id"]
            awake = "sleeping" if props.get("is_sleeping") is True else "loaded"
            value = status.get("value") if isinstance(status, dict) else awake
            if value == "downloading" or _makes_no_text(item):
                continue
            more = self._read_model_props(name) if is_router and value == "loaded" else props
            settings = more.get("default_generation_settings")
            meta = item.get("meta")
            if is_router and value == "loaded":
                slots = min(slots or 512, parse_tokens(more.get("total_slots")) or 512)
            context = parse_tokens(settings.get("n_ctx")) if isinstance(settings, dict) else None
            if context is None and isinstance(meta, dict):
                context = parse_tokens(meta.get("n_ctx"))
            models.append(
                EngineModel(
                    name,
                    context=context,
                    is_loaded=value == "loaded",
                    aliases=_find_aliases(name, item),
                    **_find_uses(name, item),
                )
            )
        models.sort(key=lambda each: not each.is_loaded)
        return EngineState(str(props.get("build_info") or ""), tuple(models), slots)

    def load(self, model: str) -> None:
        """Order the router to load `model`, and wait until it is loaded or has failed."""
        self.api.order("models/load", {"model": model}, UNLOAD_SECONDS)
        self._wait_for(model, ("loaded", "sleeping"), LOAD_SECONDS)

    def unload(self, model: str) -> None:
        self.api.order("models/unload", {"model": model}, UNLOAD_SECONDS)
        self._wait_for(model, ("unloaded",), UNLOAD_SECONDS)

    def _wait_for(self, model: str, wanted: tuple[str, ...], seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = next((each for each in self._read_listed_models() if each["id"] == model), NOTHING)
            status = found.get("status")
            status = status if isinstance(status, dict) else {}
            if status.get("value") in wanted:
                return
            if status.get("failed"):
                raise EngineFault(f"{model} ended with exit code {status.get('exit_code')}")
            time.sleep(POLL_SECONDS)
        raise EngineFault(f"{model} is not {wanted[0]} after {seconds:g} s")

    def _read_model_props(self, name: str) -> dict[str, Json]:
        try:
            return self.api.get("props", model=name, autoload="false").fields
        except EngineFault:
            return {}


def _makes_no_text(item: dict[str, Json]) -> bool:
    """Return whether the model has neither text nor vectors as its output: a model of decisions."""
    architecture = item.get("architecture")
    outputs = architecture.get("output_modalities") if isinstance(architecture, dict) else None
    return isinstance(outputs, list) and "decisions" in outputs and "text" not in outputs


def _find_uses(name: str, item: dict[str, Json]) -> Uses:
    """Return the uses of a model. A server started with `--embeddings` has no other; only a router's list
    shows the arguments, so elsewhere the name decides.
    """
    status = item.get("status")
    arguments = status.get("args") if isinstance(status, dict) else None
    if isinstance(arguments, list) and {"--embedding", "--embeddings"} & {str(each) for each in arguments}:
        return ONLY_EMBEDDINGS
    return guess_uses(PurePath(name).name)


def _find_aliases(name: str, item: dict[str, Json]) -> tuple[str, ...]:
    """Return the aliases that the server lists, and the file's name of a model that is named by its path."""
    listed = item.get("aliases")
    found = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    if name.endswith(".gguf"):
        found.append(PurePath(name).name.removesuffix(".gguf"))
    return tuple(dict.fromkeys(each for each in found if each and each != name))
