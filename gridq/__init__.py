"""gridq pools LLM seats and idle GPUs behind Celery queues that are named after capabilities.

In: a task or a graph from an agent, and the server's URL (GRIDQ_BROKER_URL).
Out: the answer. The grid splits a graph into stages, and runs each on a seat that has the capability, the
budget and a free slot.
Imported by: agents, and authors of stages and profiles.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridq.client import AsyncClient, Client, Piece, cancel, result, stream, submit
    from gridq.errors import GridError
    from gridq.profiles.profile import Profile, StageContext
    from gridq.stages import Gpu, stage
    from gridq.tasks import chat, complete, embed, run_graph

__all__ = [  # noqa: RUF022 grouped by what they are for
    # Celery tasks for agents: `.delay(…).get(timeout=…)`
    "run_graph", "complete", "chat", "embed",
    # the plain client
    "submit", "result", "stream", "cancel", "Client", "AsyncClient", "Piece",
    # for authors of stages and profiles
    "stage", "Gpu", "Profile", "StageContext",
    # the base of every error
    "GridError",
]  # fmt: skip

_NAMES_BY_MODULE = {
    "gridq.tasks": ("run_graph", "complete", "chat", "embed"),
    "gridq.client": ("submit", "result", "stream", "cancel", "Client", "AsyncClient", "Piece"),
    "gridq.stages": ("stage", "Gpu"),
    "gridq.profiles.profile": ("Profile", "StageContext"),
    "gridq.errors": ("GridError",),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `import gridq` alone loads neither Celery nor redis."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'gridq' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
