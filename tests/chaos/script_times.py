"""Watch how long the server's calls take, by its SLOWLOG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis import Redis

from gridq.config.settings import Settings
from gridq.store.scripts import Scripts

LOGGED_SECONDS = 0.02
"""Calls that take longer are in the SLOWLOG."""
TARGET_SECONDS = 0.05
"""What each script aims at, whatever the size of a graph."""
BOUND_SECONDS = 1.0
"""The longest that a call may take. A busy machine stretches the target."""
MAX_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class SlowCall:
    """One call. `began`: seconds since 1970, whole ones. `name`: the script's, or the command's."""

    began: int
    seconds: float
    name: str


class ScriptTimes:
    """The slow calls of a server, collected by `collect`, which must be called often: the log is short, and
    lost when the server restarts.
    """

    def __init__(self, client: Redis, config: Settings) -> None:
        self._names = {sha: name for name, sha in Scripts(client, config).shas.items()}
        self._seen: set[tuple[str, int]] = set()
        self.calls: list[SlowCall] = []

    def collect(self, client: Redis) -> None:
        """Read the log. RedisError: the server cannot be reached."""
        client.config_set("slowlog-log-slower-than", round(LOGGED_SECONDS * 1e6))
        client.config_set("slowlog-max-len", MAX_ENTRIES)
        info: Any = client.info("server")
        found: Any = client.slowlog_get(MAX_ENTRIES)
        for entry in found:
            key = (str(info["run_id"]), int(entry["id"]))
            if key not in self._seen:
                self._seen.add(key)
                name = self._read_name(entry["command"])
                self.calls.append(SlowCall(int(entry["start_time"]), entry["duration"] / 1e6, name))

    def select(self, suspensions: list[tuple[float, float]]) -> list[SlowCall]:
        """Return the calls, longest first, without those during which the server was suspended."""
        return sorted(
            (
                call
                for call in self.calls
                if not any(
                    start - 2 <= call.began + call.seconds and call.began <= end + 2
                    for start, end in suspensions
                )
            ),
            key=lambda call: -call.seconds,
        )

    def _read_name(self, command: bytes) -> str:
        words = command.decode("utf-8", "replace").split(" ", 2)
        if words[0].upper() == "EVALSHA" and len(words) > 1:
            return self._names.get(words[1], words[1])
        return words[0].lower()
