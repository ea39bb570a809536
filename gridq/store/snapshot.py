"""The records of a whole grid at one instant, as far as they must agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from redis import Redis

from gridq.store import library
from gridq.store.keys import Keys


class Snapshot:
    """The content of the server at `now` (ms by its clock): the items of every key that counts.

    `names[kind]` are the keys of one kind, without it: of `slots:m.a` the kind is `slots`, the name `m.a`.
    """

    def __init__(self, reply: list[list[Any]]) -> None:
        self.now = int(reply[0][1])
        self.names: dict[str, list[str]] = defaultdict(list)
        self._found: dict[str, list[Any]] = {}
        for key, *items in sorted(reply[1:], key=lambda row: bytes(row[0])):
            kind, _, name = key.decode().partition(":")
            self.names[kind].append(name)
            self._found[key.decode()] = items

    def members(self, *name: str) -> list[str]:
        """Return the members of a set, or of a sorted set whose scores do not count."""
        return [_text(item) for item in self._found.get(":".join(name), ())]

    def scores(self, *name: str) -> dict[str, float]:
        """Return member → score of a sorted set of times."""
        pairs = self._found.get(":".join(name), [])
        return {_text(pairs[at]): float(pairs[at + 1]) for at in range(0, len(pairs), 2)}

    def table(self, *name: str) -> dict[str, str]:
        """Return the fields of a hash."""
        pairs = self._found.get(":".join(name), [])
        return {_text(pairs[at]): _text(pairs[at + 1]) for at in range(0, len(pairs), 2)}


def read(client: Redis, keys: Keys, max_items: int) -> Snapshot | None:
    """Return the grid's records at one instant, None if there are more than `max_items` to read (as audit.lua
    counts them), which would take too long.
    """
    text = f"local K = '{keys.own}'\n" + library.read_lua("audit")
    reply: Any = client.eval(text, 0, max_items)
    return Snapshot(reply) if reply else None


def _text(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
