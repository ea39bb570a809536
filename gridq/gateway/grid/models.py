"""List the models that the grid offers now, for both model APIs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from redis import Redis

from gridq.limits.quotas_loader import read_aliases
from gridq.protocol.models import Advertisement, Json
from gridq.protocol.queue_aliases import NO_ALIASES, QueueAliases
from gridq.protocol.queue_names import ANY_EMBEDDINGS, ANY_MODEL, LLM, get_kind, get_name, make_queue_name
from gridq.seats import registry
from gridq.store.keys import Keys

MAX_SUGGESTIONS = 3
"""Maximum number of names that an error suggests."""


Record = dict[str, Json]
"""One model, with the fields that OpenAI's and Anthropic's clients read; each ignores those of the other."""


@dataclass(frozen=True)
class OfferedModels:
    """What live seats offer: a record of each model, family, alias and `any`, by name."""

    records: dict[str, Record]
    aliases: QueueAliases

    @cached_property
    def _by_lower_name(self) -> dict[str, Record]:
        return {name.lower(): record for name, record in self.records.items()}

    def find(self, name: str) -> Record | None:
        """Return the record of a name, also of one that only a pattern of the aliases matches."""
        return self.records.get(name) or _make_alias_record(name, self.aliases, self._by_lower_name)


def read_models(client: Redis, keys: Keys) -> OfferedModels:
    """Return what live seats offer.

    Workers over HTTP are left out: they run stages of graphs, not requests of a model API. So are the
    patterns of aliases: a client asks for a name.
    """
    aliases = read_aliases(client, keys)
    ads = [ad for ad in registry.read_advertisements(client, keys) if ad.machine != registry.HTTP_MACHINE]
    return OfferedModels(list_models(ads, aliases), aliases)


def _make_alias_record(name: str, aliases: QueueAliases, offered: Mapping[str, Record]) -> Record | None:
    """Return the record of a name that stands for others, None if it does not, or if none is on offer.

    `offered` are the records by their names in lower case.
    """
    if not name:
        return None
    targets = [get_name(queue) for queue in aliases.find_targets(make_queue_name(LLM, name))]
    serving = next((offered[target] for target in targets if target in offered), None)
    if serving is None:
        return None
    return {**serving, "id": name, "display_name": name, "owned_by": "gridq", "stands_for": targets}


def find_closest(name: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` that are closest to an unknown one, or some of them if none is close."""
    lowered = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), MAX_SUGGESTIONS, 0.5)
    return [lowered[other] for other in close] or sorted(lowered.values())[:MAX_SUGGESTIONS]


def list_models(ads: Sequence[Advertisement], aliases: QueueAliases = NO_ALIASES) -> dict[str, Record]:
    """Return the models of advertisements: names as the seats write them, else those of their queues.

    Names of `aliases` follow if no seat has a model of that name.
    """
    found: dict[str, Record] = {}
    for ad in sorted(ads, key=lambda ad: ad.started_at):
        slugs = {get_name(queue) for queue in ad.queues if get_kind(queue) == LLM} - {ANY_EMBEDDINGS}
        host = ad.capability.get("host")
        owner = host if isinstance(host, str) else "gridq"
        for name in [*(registry.list_model_names(ad.capability) if slugs else ()), *sorted(slugs)]:
            # Queues are in lower case; a model is listed once, as its seat writes it.
            found.setdefault(
                name.lower(), _make_record(name, ad.started_at, "gridq" if name == ANY_MODEL else owner)
            )
    offered = dict(found)
    for name in map(get_name, aliases.list_names()):
        record = _make_alias_record(name, aliases, offered)
        if record is not None:
            found.setdefault(name, record)
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
