"""Queue aliases: queues that stand for others, as `[models]` of the quotas file sets them.

A stage that needs an aliased queue waits in it while a live seat serves it, else in the first of its targets
that one does: the targets become fall-backs of the stage's demand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from gridq.protocol.models import Demand

WILDCARD = "*"
"""Stands for any characters in the name of an alias, which is then a pattern."""

Targets = tuple[str, ...]


@dataclass(frozen=True)
class QueueAliases:
    """Each queue or pattern of queues with its targets, in the order of the file."""

    entries: tuple[tuple[str, Targets], ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def _exact(self) -> dict[str, Targets]:
        return {name: targets for name, targets in self.entries if WILDCARD not in name}

    @cached_property
    def _patterns(self) -> list[tuple[list[str], Targets]]:
        return [(name.split(WILDCARD), targets) for name, targets in self.entries if WILDCARD in name]

    def find_targets(self, queue: str) -> Targets:
        """Return the targets of `queue`: of its own alias, else of the first pattern that matches it."""
        own = self._exact.get(queue)
        if own is not None:
            return own
        matching = (targets for parts, targets in self._patterns if _matches(queue, parts))
        return next(matching, ())

    def expand(self, demand: Demand) -> Demand:
        """Return `demand` with the targets of each alternative behind it, with the same needs."""
        found: dict[str, Demand] = {}
        for each in demand.alternatives:
            for queue in (each.queue, *self.find_targets(each.queue)):
                found.setdefault(queue, each.model_copy(update={"queue": queue, "fallbacks": ()}))
        if len(found) == len(demand.alternatives):
            return demand
        first, *others = found.values()
        return first.model_copy(update={"fallbacks": tuple(others)})

    def list_names(self) -> dict[str, Targets]:
        """Return the queues that have an alias of their own, without the patterns."""
        return dict(self._exact)

    def to_json(self) -> str:
        return json.dumps(self.entries, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> QueueAliases:
        return cls(tuple((name, tuple(targets)) for name, targets in json.loads(text)))


def _matches(queue: str, parts: list[str]) -> bool:
    """Return whether `queue` has the parts of a pattern in their order, the first and the last at its ends.

    Each part is taken where it comes first, so that the time is linear. A regular expression would try all.
    """
    first, *inner, last = parts
    at, end = len(first), len(queue) - len(last)
    if at > end or not queue.startswith(first) or not queue.endswith(last):
        return False
    for part in inner:
        found = queue.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


NO_ALIASES = QueueAliases()
