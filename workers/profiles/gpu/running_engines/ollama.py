"""Ollama, by its API at `/api`: https://docs.ollama.com/api."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import ClassVar

from gridq.protocol.models import Json
from workers.profiles.gpu.running_engines.engine import (
    LOAD_SECONDS,
    UNLOAD_SECONDS,
    EngineModel,
    EngineState,
    RunningEngine,
    Uses,
    guess_uses,
    parse_tokens,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault, EngineUnreachable

LATEST = ":latest"
"""The tag that Ollama adds to a name without one."""

CONTEXT_PARAMETER = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
SHOWN_AT_ONCE = 8
SHOW_SECONDS = 0.5
"""Time for the details of models. A probe has two seconds, and Ollama may have hundreds of models."""


class Ollama(RunningEngine):
    """A model is loaded by its first request and unloaded after its `keep_alive`.

    Ollama does not say how many requests it runs at once (OLLAMA_NUM_PARALLEL); its own default is one.
    Models of its cloud run elsewhere, on its owner's account, and are not lent.
    """

    kind: ClassVar[str] = "ollama"
    title: ClassVar[str] = "Ollama"
    ports: ClassVar[tuple[int, ...]] = (11434,)
    truncates_prompts: ClassVar[bool] = True

    def __init__(self, api: EngineApi) -> None:
        super().__init__(api)
        self._lock = threading.Lock()
        self._shown: dict[str, Mapping[str, Json]] = {}  # by digest

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        return isinstance(api.get("api/version").fields.get("version"), str) and isinstance(
            api.get("api/tags").fields.get("models"), list
        )

    def read_state(self) -> EngineState:
        version = self.api.get("api/version").fields.get("version")
        listed = self.api.get("api/tags").fields.get("models")
        running = self.api.get("api/ps").fields.get("models") or []
        if not isinstance(version, str) or not isinstance(listed, list):
            raise EngineFault("it does not answer as Ollama does")
        contexts = {
            each.get("name"): parse_tokens(each.get("context_length"))
            for each in running
            if isinstance(each, dict)
        }
        models, skipped = [], []
        items = [each for each in listed if isinstance(each, dict) and isinstance(each.get("name"), str)]
        for item, shown in zip(items, self._show(items), strict=True):
            name = item["name"]
            if item.get("remote_host") or item.get("remote_model"):
                skipped.append(f"{name} runs in Ollama's cloud, on its owner's account")
                continue
            models.append(
                EngineModel(
                    name,
                    context=contexts.get(name) or _find_context(shown),
                    is_loaded=name in contexts,
                    aliases=(name.removesuffix(LATEST),) if name.endswith(LATEST) else (),
                    **_find_uses(name, {**item, **shown}),
                )
            )
        return EngineState(version, tuple(models), skipped=tuple(skipped))

    def load(self, model: str) -> None:
        """Load `model`: a request without a prompt does it. Its owner's OLLAMA_KEEP_ALIVE stays in force."""
        self._send({"model": model}, LOAD_SECONDS)

    def unload(self, model: str) -> None:
        self._send({"model": model, "keep_alive": 0}, UNLOAD_SECONDS)

    def _send(self, order: dict[str, Json], seconds: float) -> None:
        try:
            self.api.order("api/generate", {**order, "stream": False}, seconds)
        except EngineFault as fault:
            if "does not support generate" not in str(fault):
                raise
            self.api.order("api/embed", {**order, "input": []}, seconds)

    def _show(self, items: list[dict[str, Json]]) -> list[Mapping[str, Json]]:
        """Return the details of models, which Ollama is asked for once for each content; empty for those that
        it has not told within SHOW_SECONDS. The next look asks for them again.
        """
        names = {_get_digest(item): item["name"] for item in items if _get_digest(item) not in self._shown}
        if names:
            pool = ThreadPoolExecutor(min(SHOWN_AT_ONCE, len(names)))
            asked = {digest: pool.submit(self._show_one, name) for digest, name in names.items()}
            wait(asked.values(), SHOW_SECONDS)
            pool.shutdown(wait=False, cancel_futures=True)
            answers = {
                digest: future.result()
                for digest, future in asked.items()
                if future.done() and not future.cancelled()
            }
            with self._lock:
                self._shown |= {digest: fields for digest, fields in answers.items() if fields}
        return [self._shown.get(_get_digest(item), {}) for item in items]

    def _show_one(self, name: str) -> Mapping[str, Json]:
        try:
            return self.api.post("api/show", {"model": name}).fields
        except (EngineFault, EngineUnreachable):  # the next look asks again
            return {}


def _get_digest(item: Mapping[str, Json]) -> str:
    return str(item.get("digest") or item["name"])


def _find_context(shown: Mapping[str, Json]) -> int | None:
    """Return the context that the model's own file sets. Without one, Ollama chooses it when it loads it."""
    found = CONTEXT_PARAMETER.search(str(shown.get("parameters") or ""))
    return parse_tokens(int(found[1])) if found else None


def _find_uses(name: str, shown: Mapping[str, Json]) -> Uses:
    capabilities = shown.get("capabilities")
    if not isinstance(capabilities, list) or not capabilities:
        return guess_uses(name)
    return {"embeddings": "embedding" in capabilities, "any": "completion" in capabilities}
