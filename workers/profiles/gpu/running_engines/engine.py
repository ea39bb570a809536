"""The base class of running engines: what gridq asks a server of models, and has it do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import ClassVar, TypedDict

from gridq.protocol.models import Json
from workers.model_apis.model_kinds import guess_kind
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault, Reply

LOAD_SECONDS = 600.0
"""Time for an order to load a model."""

UNLOAD_SECONDS = 30.0

MAX_MODELS = 1000
"""Models of one engine that are lent: each has a queue, and stands in the seat's heartbeat."""

MAX_NAME_CHARACTERS = 256


@dataclass(frozen=True)
class EngineModel:
    """A model that an engine has.

    `context` is what one request may use at most, in tokens, None if the engine does not say it. `any`: it
    writes text. `aliases` are further names by which the engine itself knows it.
    """

    name: str
    context: int | None = None
    embeddings: bool = False
    any: bool = True
    is_loaded: bool = False
    is_loading: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineState:
    """What an engine said: its version, its models, the preferred one first, and how many requests it runs at
    once (None if it does not say it). `skipped` names what it lists and gridq does not lend, and why.

    Models with a name that nobody could send, and those beyond MAX_MODELS, are left out.
    """

    version: str = ""
    models: tuple[EngineModel, ...] = ()
    slots: int | None = None
    skipped: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        named = [model for model in self.models if _is_usable(model.name)]
        left_out = []
        if len(named) < len(self.models):
            left_out.append(f"{len(self.models) - len(named)} models have names that cannot be used")
        if len(named) > MAX_MODELS:
            left_out.append(f"it has {len(named)} models; the first {MAX_MODELS} are lent")
        object.__setattr__(self, "models", tuple(named[:MAX_MODELS]))
        object.__setattr__(self, "skipped", (*self.skipped, *left_out))

    @property
    def loaded(self) -> list[str]:
        return [model.name for model in self.models if model.is_loaded]


def _is_usable(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()


class RunningEngine(ABC):
    """A server of models that another program started. Safe to use from several threads."""

    kind: ClassVar[str]
    title: ClassVar[str]
    ports: ClassVar[tuple[int, ...]] = ()
    """The ports at which it usually listens."""

    default_slots: ClassVar[int] = 1
    """Requests that it runs at once if it does not say how many."""

    truncates_prompts: ClassVar[bool] = False
    """True if it cuts a prompt that is longer than its context, and does not say so."""

    loads_by_order: ClassVar[bool] = False
    """True if a request for a model that is not loaded fails, so that gridq has to load it first."""

    def __init__(self, api: EngineApi) -> None:
        self.api = api

    @classmethod
    @abstractmethod
    def recognizes(cls, api: EngineApi) -> bool:
        """Return whether the program behind `api` is this engine. Raises EngineUnreachable, EngineFault."""

    @abstractmethod
    def read_state(self) -> EngineState:
        """Return what the engine has now. Raises EngineUnreachable, and EngineFault if it is not this engine
        any more, or does not answer well.
        """

    def load(self, model: str) -> None:
        """Load `model` and return once it can answer. Raises EngineFault if it cannot be loaded."""
        raise EngineFault(f"{self.title} cannot load models on command")

    def unload(self, model: str) -> None:
        """Give the memory of `model` back. Raises EngineFault if that fails."""
        raise EngineFault(f"{self.title} cannot unload models on command")

    def _read_listed_models(self) -> list[dict[str, Json]]:
        """Return the models of `/v1/models`. Raises EngineFault if there is no such list."""
        reply = self.api.get("v1/models")
        return parse_listing(reply, self.title)


def parse_listing(reply: Reply, title: str) -> list[dict[str, Json]]:
    """Return the models that an OpenAI-compatible server lists. Raises EngineFault if it lists none."""
    items = reply.fields.get("data")
    if not isinstance(items, list):
        reason = "it wants a key" if reply.status in (401, 403) else f"HTTP {reply.status}"
        raise EngineFault(f"{title} does not list its models: {reason}")
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]


def parse_tokens(value: Json) -> int | None:
    """Return a positive number of tokens or slots, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class Uses(TypedDict):
    """What a model is for: the fields of that name of `EngineModel`."""

    embeddings: bool
    any: bool


ONLY_EMBEDDINGS: Uses = {"embeddings": True, "any": False}


def guess_uses(name: str) -> Uses:
    """Return the uses of a model of which only the name is known."""
    kind = guess_kind(name)
    return {"embeddings": kind == "embeddings", "any": kind == "text"}


def find_short_names(name: str) -> tuple[str, ...]:
    """Return the last part of a name that is a path, as engines name models that they were given as a file or
    folder.
    """
    path = PurePath(name)
    is_path = path.is_absolute() or path.suffix == ".gguf"
    return (path.name.removesuffix(".gguf"),) if is_path and path.name else ()
