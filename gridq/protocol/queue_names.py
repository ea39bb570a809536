"""The grammar of queue names.

A capability is `kind:slug`, which is also the name of its Celery queue. A slug holds `[a-z0-9._-]`; other
characters are %-escaped by their UTF-8 bytes, so two different names never share a queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from gridq.errors import ConfigError

ROUTER = "gridq:router"
"""The queue that wakes routers up when the inbox has a job to admit."""

NO_ROUTER = "no router is live"
START_ROUTER = "start a router: gridq up, or celery -A gridq.app worker -Q gridq:router"
"""What errors say of a grid without a router, and what helps."""

PURE = "gridq:pure"
"""The queue of built-in pure stages, run by the slot that completes their inputs, or else by a router."""

LOCAL = "gridq:local"
"""The queue of built-in stages that use the machine or the network; each machine's `local` seat serves it."""

LLM = "llm"
"""The kind of language models. Aliases and the model APIs name models without it."""

ANY_MODEL = "any"
"""The name that stands for whichever model a seat prefers for text."""

ANY_EMBEDDINGS = "any/embeddings"
"""The same for embeddings; only gridq itself uses this name."""

OWN_KIND = "gridq"
"""The kind of the grid's own queues, which no profile may use."""

SEAT_KIND = "seat"
"""The kind of a seat's own queue, `seat:<id>`, which holds wake-ups only."""

_SAFE = re.compile(r"[a-z0-9._-]")
_NAME = re.compile(r"[a-z][a-z0-9_]*:(?:[a-z0-9._-]|%[0-9A-F]{2})+")


def make_slug(name: str) -> str:
    """Return `name` in lower case, with every character outside `[a-z0-9._-]` %-escaped.

    >>> make_slug("Claude Opus")
    'claude%20opus'
    """
    if not name:
        raise ConfigError("A capability's name is empty", {"expected": "at least one character"})
    return "".join(
        c if _SAFE.match(c) else "".join(f"%{b:02X}" for b in c.encode("utf-8", "surrogatepass"))
        for c in name.lower()
    )


def normalize_slug(written: str) -> str:
    """Return the slug of a name that may already be a slug.

    >>> normalize_slug("Meta/Llama-3"), normalize_slug("meta%2Fllama-3")
    ('meta%2Fllama-3', 'meta%2Fllama-3')
    """
    return make_slug(unquote(written))


def make_queue_name(kind: str, name: str) -> str:
    """Return the queue of the capability `name` of `kind`.

    >>> make_queue_name("llm", "any")
    'llm:any'
    """
    return f"{kind}:{make_slug(name)}"


def get_kind(queue: str) -> str:
    """Return the kind of a queue: the part before the colon."""
    return queue.partition(":")[0]


def is_built_in(queue: str) -> bool:
    """Return whether a queue has built-in stages or user code, which cost no money."""
    return get_kind(queue) == "gridq"


def get_name(queue: str) -> str:
    """Return the name of a queue's capability, in lower case.

    >>> get_name("llm:meta%2Fllama-3")
    'meta/llama-3'
    """
    return unquote(queue.partition(":")[2])


def format_queue(queue: str) -> str:
    """Return a queue as people read it, with the name of its model as its owner wrote it.

    >>> format_queue("llm:qwen3%3A8b")
    'llm:qwen3:8b'
    """
    kind, colon, slug = queue.partition(":")
    name = unquote(slug)
    return f"{kind}{colon}{name}" if name.isprintable() else queue


def list_offered(queues: Iterable[str]) -> list[str]:
    """Return the queues of a seat that somebody may ask for: all but the one that only gridq names.

    >>> list_offered(["llm:any", "llm:any/embeddings"])
    ['llm:any']
    """
    return [queue for queue in queues if get_name(queue) != ANY_EMBEDDINGS]


def format_offered(queues: Iterable[str]) -> list[str]:
    """Return the queues of a seat that somebody may ask for, as people read them."""
    return [format_queue(queue) for queue in list_offered(queues)]


def make_seat_queue(seat: str) -> str:
    """Return the queue that only `seat` listens to."""
    return f"{SEAT_KIND}:{seat}"


def make_module_queue(module: str) -> str:
    """Return the queue of the user's Python stages in `module`; machines that can import it serve the queue.

    >>> make_module_queue("my_pkg.stages")
    'gridq:local.my_pkg.stages'
    """
    return f"{LOCAL}.{make_slug(module)}"


def check_queue_name(queue: str) -> str:
    """Return `queue`; raise ConfigError if it is not a queue name."""
    if not _NAME.fullmatch(queue):
        raise ConfigError(
            f"{queue!r} is not a queue name", {"expected": "kind:slug, such as llm:claude or gpu:cuda-24g"}
        )
    return queue
