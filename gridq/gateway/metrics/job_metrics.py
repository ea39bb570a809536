"""What has become of the grid's jobs since this gateway started, counted from what each leaves behind.

The scripts count nothing for monitors: on the way of every stage a counter would cost each one something. An
ended job's state and rows stay for GRIDQ_RESULT_TTL; they are read once, when somebody asks for the metrics.
So each gateway counts the whole grid for itself: of several take one, do not add them up.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from threading import Lock
from typing import Any

from redis import Redis

from gridq.gateway.metrics.histogram import Distribution
from gridq.store.keys import Keys

PAGE = 200
"""Jobs read in one round trip."""

MOST = 4000
"""Jobs read for one look at the metrics at most; what is left is read for the next one."""

AGENTS = 500
"""Agents that are told apart: those that come later are counted under OTHERS."""

OTHERS = "(others)"


class Harvest:
    """The counts. `take` adds what has ended since it was called last; threads may share it."""

    def __init__(self, ttl_ms: int) -> None:
        self.submitted = 0
        self.ended: Counter[str] = Counter()
        self.stages: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[str] = Counter()
        self.waits: defaultdict[str, Distribution] = defaultdict(Distribution)
        self.runs: defaultdict[str, Distribution] = defaultdict(Distribution)
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.agents: Counter[str] = Counter()
        self.seats: Counter[str] = Counter()
        self.micro_dollars = 0
        self.behind = False
        """Whether there was more than MOST to read."""
        self._born = time.monotonic()
        self._ttl_ms = ttl_ms
        self._at = -1.0
        self._seen: set[bytes] = set()
        self._submitted_until = -1
        self._lock = Lock()

    def take(self, client: Redis, keys: Keys) -> None:
        """Read what has ended, and count what was submitted."""
        with self._lock:
            clock: Any = client.time()
            now = int(clock[0]) * 1000 + int(clock[1]) // 1000
            if self._at < 0:
                self._submitted_until = now - int((time.monotonic() - self._born) * 1000) - 1
                self._at = self._submitted_until + self._ttl_ms
            # What came in this very millisecond is counted the next time: more may come in it.
            came: Any = client.zcount(keys("jobs"), f"({self._submitted_until}", now - 1)
            self.submitted += came
            self._submitted_until = max(self._submitted_until, now - 1)
            for _ in range(MOST // PAGE):
                more = self._page(client, keys)
                if not more:
                    self.behind = False
                    return
            self.behind = True

    def _page(self, client: Redis, keys: Keys) -> bool:
        """Read some jobs; whether there may be more. They stand in the order of the end of their results'
        life, so one of a submitter with a shorter GRIDQ_RESULT_TTL than the grid's may be missed.
        """
        num = PAGE + len(self._seen)
        found: Any = client.zrange(
            keys("ended_jobs"), self._at, "+inf", byscore=True, withscores=True, offset=0, num=num
        )
        fresh = [(job, at) for job, at in found if job not in self._seen]
        look = client.pipeline(transaction=False)
        for job, _ in fresh:
            name = job.decode()
            look.hmget(keys("summary", name), ["state", "agent"])
            look.lrange(keys("rows", name), 0, -1)
        replies = look.execute() if fresh else []
        for about, rows in zip(replies[::2], replies[1::2], strict=True):
            self._job(about, rows)
        if found:
            last = found[-1][1]
            # Of the last millisecond read: others may still end in it.
            same = {job for job, at in found if at == last}
            self._seen = same | (self._seen if last == self._at else set())
            self._at = last
        return len(found) == num

    def _job(self, about: list[bytes | None], rows: list[bytes]) -> None:
        state, agent = about
        if state is None:
            return
        self.ended[state.decode()] += 1
        spent = 0
        for text in rows:
            for row in json.loads(text):
                spent += self._row(row)
        if spent:
            name = (agent or b"").decode()
            self.agents[name if name in self.agents or len(self.agents) < AGENTS else OTHERS] += spent
            self.micro_dollars += spent

    def _row(self, row: dict[str, Any]) -> int:
        """Count one stage; what it cost."""
        queue, spent = row["queue"], int(row.get("micro_dollars") or 0)
        self.stages[queue, row.get("state", "done")] += 1
        self.waits[queue].add(row.get("wait_ms", 0.0) / 1000)
        self.runs[queue].add(row.get("run_ms", 0.0) / 1000)
        again = row.get("failures", 0) + row.get("losses", 0) + row.get("deaths", 0)
        if again:
            self.retries[queue] += again
        for way in ("in", "out"):
            if row.get(f"tokens_{way}"):
                self.tokens[queue, way] += row[f"tokens_{way}"]
        if spent:
            name, _, machine = row["worker"].partition("@")
            self.seats[f"{machine}.{name}" if machine else name] += spent
        return spent
