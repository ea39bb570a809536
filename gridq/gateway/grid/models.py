"""List the models that the grid offers now, for both model APIs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from redis import Redis

from gridq.protocol.models import Advertisement, Json
from gridq.seats import registry
from gridq.store.keys import Keys

LLM = "llm"
LLM_PREFIX = f"{LLM}:"
ANY_MODEL = "any"

MAX_SUGGESTIONS = 3
"""Maximum number of names that an error suggests."""


def read_models(client: Redis, keys: Keys) -> dict[str, dict[str, Json]]:
    """Return each model, family and `any` that a live seat offers, by name, in one record for both APIs.

    Workers over HTTP are left out: they run stages of graphs, not requests of a model API.
    """
    return list_models(
        [ad for ad in registry.read_advertisements(client, keys) if ad.machine != registry.HTTP_MACHINE]
    )


def find_closest(name: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` that are closest to an unknown one, or some of them if none is close."""
    lowered = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), MAX_SUGGESTIONS, 0.5)
    return [lowered[other] for other in close] or sorted(lowered.values())[:MAX_SUGGESTIONS]


def list_models(ads: Sequence[Advertisement]) -> dict[str, dict[str, Json]]:
    """Return the models of advertisements: names as the seats write them, else those of their queues."""
    found: dict[str, dict[str, Json]] = {}
    for ad in sorted(ads, key=lambda ad: ad.started_at):
        slugs = {
            unquote(queue.removeprefix(LLM_PREFIX)) for queue in ad.queues if queue.startswith(LLM_PREFIX)
        }
        host = ad.capability.get("host")
        owner = host if isinstance(host, str) else "gridq"
        for name in [*(registry.list_model_names(ad.capability) if slugs else ()), *sorted(slugs)]:
            # Queues are in lower case; a model is listed once, as its seat writes it.
            found.setdefault(
                name.lower(), _make_record(name, ad.started_at, "gridq" if name == ANY_MODEL else owner)
            )
    return {record["id"]: record for _, record in sorted(found.items())}


def _make_record(name: str, since: float, owner: str) -> dict[str, Json]:
    """Return the fields that OpenAI's and Anthropic's clients read; each ignores those of the other."""
    return {
        "id": name,
        "object": "model",
        "created": int(since),
        "owned_by": owner,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(int(since), UTC).isoformat().replace("+00:00", "Z"),
    }
