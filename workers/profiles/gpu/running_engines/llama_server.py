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
    ONLY_EMBEDDINGS,
    UNLOAD_SECONDS,
    EngineModel,
    EngineState,
    RunningEngine,
    Uses,
    find_short_names,
    guess_uses,
    parse_tokens,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault

OWNER = "llamacpp"
POLL_SECONDS = 0.25
ONLY_MODEL = "only model"
"""The state of the model of a server that is no router: it is loaded while the server runs."""

AWAKE = ("loaded", "sleeping", ONLY_MODEL)
"""The states of a model that can answer. One that sleeps wakes with its next request."""


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
            has_failed = isinstance(status, dict) and status.get("failed") is True
            if value == "downloading" or _makes_no_text(item):
                continue
            more = self._read_model_props(name) if is_router and value == "loaded" else props
            settings = more.get("default_generation_settings")
            meta = item.get("meta")
            if is_router:
                own_slots = parse_tokens(more.get("total_slots")) or _find_slots(status)
                slots = min(filter(None, (slots, own_slots)), default=None)
            context = parse_tokens(settings.get("n_ctx")) if isinstance(settings, dict) else None
            if context is None and isinstance(meta, dict):
                context = parse_tokens(meta.get("n_ctx"))
            uses = _find_uses(name, item)
            if has_failed:  # it is tried again if somebody asks for it by name
                uses["any"] = False
            models.append(
                EngineModel(
                    name,
                    context=context,
                    is_loaded=value == "loaded",
                    is_loading=value == "loading",
                    aliases=_find_aliases(name, item),
                    **uses,
                )
            )
        models.sort(key=lambda each: not each.is_loaded)
        return EngineState(str(props.get("build_info") or ""), tuple(models), slots)

    def load(self, model: str) -> None:
        """Order the router to load `model`, and wait until it is loaded or has failed."""
        if self._read_status(model) not in (*AWAKE, "loading"):  # for these the order would be an error
            self.api.order("models/load", {"model": model}, UNLOAD_SECONDS)
        self._wait_for(model, AWAKE, LOAD_SECONDS)

    def unload(self, model: str) -> None:
        """Order the router to end the process of `model`, and wait for it."""
        status = self._read_status(model)
        if status == ONLY_MODEL:
            raise EngineFault("it keeps its model while it runs: only a router of several models unloads")
        if status != "unloaded":
            self.api.order("models/unload", {"model": model}, UNLOAD_SECONDS)
        self._wait_for(model, ("unloaded",), UNLOAD_SECONDS)

    def _read_status(self, model: str, *, is_ordered: bool = False) -> Json:
        """Return the state of `model`.

        Raises EngineFault if the server does not have it or, after an order, if it could not be loaded.
        """
        found = next((each for each in self._read_listed_models() if each["id"] == model), None)
        if found is None:
            raise EngineFault(f"it does not have the model {model} any more")
        status = found.get("status")
        if not isinstance(status, dict):
            return ONLY_MODEL
        if is_ordered and status.get("failed"):
            raise EngineFault(f"{model} ended with exit code {status.get('exit_code')}")
        return status.get("value")

    def _wait_for(self, model: str, wanted: tuple[str, ...], seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._read_status(model, is_ordered=wanted == AWAKE) not in wanted:
            if time.monotonic() > until:
                raise EngineFault(f"{model} is not {wanted[0]} after {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def _read_model_props(self, name: str) -> dict[str, Json]:
        try:
            return self.api.get("props", model=name, autoload="false").fields
        except EngineFault:
            return {}


def _find_slots(status: Json) -> int | None:
    """Return the slots that a router's model will have by its arguments, None if they do not say it."""
    arguments = status.get("args") if isinstance(status, dict) else None
    words = [str(each) for each in arguments] if isinstance(arguments, list) else []
    value = words[words.index("--parallel") + 1 :] if "--parallel" in words else []
    return int(value[0]) or None if value and value[0].isdigit() else None


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
    """Return the aliases that the server lists, and the short name of a model that is named by its path."""
    listed = item.get("aliases")
    found = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return tuple(dict.fromkeys(each for each in (*found, *find_short_names(name)) if each and each != name))
