"""gridq pools LLM seats and idle GPUs behind Celery queues named per capability.

Agents send a task or a whole composition graph; the grid splits it, sends each stage to whoever has the
capability, the budget and a free slot, and answers. Everything here needs only the broker's URL
(GRIDQ_BROKER_URL).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridq.client import AsyncClient, Client, Piece, cancel, result, stream, submit
    from gridq.errors import GridError
    from gridq.profiles.profile import Profile, StageContext
    from gridq.stages import stage
    from gridq.tasks import chat, complete, embed, run_graph

__all__ = [  # noqa: RUF022 grouped by what they are for
    # Celery tasks for agents: `.delay(…).get(timeout=…)`
    "run_graph", "complete", "chat", "embed",
    # the plain client
    "submit", "result", "stream", "cancel", "Client", "AsyncClient", "Piece",
    # for authors of stages and profiles
    "stage", "Profile", "StageContext",
    # the base of every error
    "GridError",
]  # fmt: skip

_HOMES = {
    "gridq.tasks": ("run_graph", "complete", "chat", "embed"),
    "gridq.client": ("submit", "result", "stream", "cancel", "Client", "AsyncClient", "Piece"),
    "gridq.stages": ("stage",),
    "gridq.profiles.profile": ("Profile", "StageContext"),
    "gridq.errors": ("GridError",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: `import gridq` alone loads neither Celery nor redis."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gridq' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
