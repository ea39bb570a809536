"""The only grammar of queue names.

A capability is `kind:slug` and is also the name of a Celery queue. Slugs hold `[a-z0-9._-]`; any other
character is %-escaped by its UTF-8 bytes, so two different names never meet in one queue.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from gridq.errors import ConfigError

ROUTER = "gridq:router"
"""Wake-ups for routers: a job waits in the inbox to be admitted."""

PURE = "gridq:pure"
"""Built-in pure stages, run by whichever slot completes what they wait for, else by a router."""

LOCAL = "gridq:local"
"""Built-in stages with effects on the machine or the network, run by each machine's own `local` seat."""

OWN_KIND = "gridq"
"""The kind of the grid's own queues, which no effect names."""

SEAT_KIND = "seat"
"""`seat:<id>` is a seat's own queue, for wake-ups only."""

_SAFE = re.compile(r"[a-z0-9._-]")
_NAME = re.compile(r"[a-z][a-z0-9_]*:(?:[a-z0-9._-]|%[0-9A-F]{2})+")


def make_slug(name: str) -> str:
    """`name` in lower case with every character outside `[a-z0-9._-]` %-escaped.

    >>> slug("Claude Opus")
    'claude%20opus'
    """
    if not name:
        raise ConfigError("A capability's name is empty", {"expected": "at least one character"})
    return "".join(
        c if _SAFE.match(c) else "".join(f"%{b:02X}" for b in c.encode("utf-8", "surrogatepass"))
        for c in name.lower()
    )


def normalize_slug(written: str) -> str:
    """The slug of a name that is written as itself or as its slug.

    >>> slug_of("Meta/Llama-3"), slug_of("meta%2Fllama-3")
    ('meta%2Fllama-3', 'meta%2Fllama-3')
    """
    return make_slug(unquote(written))


def make_queue_name(kind: str, name: str) -> str:
    """The queue of capability `name` of `kind`.

    >>> capability("llm", "any")
    'llm:any'
    """
    return f"{kind}:{make_slug(name)}"


def get_kind(queue: str) -> str:
    """The kind of a queue: what stands before the colon."""
    return queue.partition(":")[0]


def make_seat_queue(seat: str) -> str:
    """The queue on which only `seat` listens."""
    return f"{SEAT_KIND}:{seat}"


def make_module_queue(module: str) -> str:
    """The queue of the user's Python stages in `module`: served only where the module imports.

    >>> module_queue("my_pkg.stages")
    'gridq:local.my_pkg.stages'
    """
    return f"{LOCAL}.{make_slug(module)}"


def check_queue_name(queue: str) -> str:
    """`queue` itself; ConfigError where it is no queue name."""
    if not _NAME.fullmatch(queue):
        raise ConfigError(
            f"{queue!r} is not a queue name", {"expected": "kind:slug, such as llm:claude or gpu:cuda-24g"}
        )
    return queue
